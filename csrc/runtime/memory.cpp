// SPDX-License-Identifier: Apache-2.0
// The entry points for device memory.
#include <algorithm>
#include <cstring>

#include "device.h"
#include "memory_source.h"
#include "memory_tag.h"
#include "process.h"
#include "topology.h"
#include "transfer.h"

namespace anvil {
namespace {

DeviceAllocator& AllocatorOf(Block* block) {
  return *static_cast<DeviceAllocator*>(block->heap->owner());
}

// Runs `body(allocator)` on one device.
template <typename Body>
anvilError_t WithAllocator(int device, Body&& body) {
  return Guarded([&] {
    Device* found = nullptr;
    const anvilError_t status = GetDevice(device, &found);
    if (status != ANVIL_SUCCESS) return status;
    body(found->allocator);
    return ANVIL_SUCCESS;
  });
}

}  // namespace
}  // namespace anvil

using namespace anvil;

anvilError_t anvilMalloc(anvilBlock_t* block, void** ptr, size_t bytes, int device,
                         unsigned flags) {
  return Guarded([&] {
    if (block == nullptr) return FailNull("anvilMalloc", "block");
    if (ptr == nullptr) return FailNull("anvilMalloc", "ptr");
    *block = nullptr;
    *ptr = nullptr;
    if ((flags & ~ANVIL_ALLOC_ZEROED) != 0) {
      return Fail(ANVIL_ERROR_INVALID_VALUE, "anvilMalloc: unknown flags.");
    }
    Device* found = nullptr;
    anvilError_t status = GetDevice(device, &found);
    if (status != ANVIL_SUCCESS || bytes == 0) return status;
    bool dirty = false;
    status = found->allocator.Allocate(bytes, CurrentTag(), block, &dirty);
    if (status != ANVIL_SUCCESS) return status;
    *ptr = (*block)->ptr;
    // The whole block, not only what was asked for: kernels may read up to its end.
    if ((flags & ANVIL_ALLOC_ZEROED) != 0 && dirty) Fill(found->workers, *ptr, 0, (*block)->size);
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilFree(anvilBlock_t block) {
  return Guarded([&] {
    if (block == nullptr) return ANVIL_SUCCESS;
    if (IsForkedChild()) return FailForked();
    return AllocatorOf(block).Free(block);
  });
}

int anvilBlockDevice(anvilBlock_t block) {
  return block == nullptr ? -1 : AllocatorOf(block).device();
}

size_t anvilBlockSize(anvilBlock_t block) { return block == nullptr ? 0 : block->size; }

anvilError_t anvilPointerGetDevice(int* device, const void* ptr) {
  return Guarded([&] {
    if (device == nullptr) return FailNull("anvilPointerGetDevice", "device");
    if (IsForkedChild()) return FailForked();
    *device = OwnerOf(ptr);
    if (*device >= 0) return ANVIL_SUCCESS;
    return Fail(ANVIL_ERROR_INVALID_VALUE,
                "anvilPointerGetDevice: the address is not in any device's memory.");
  });
}

anvilError_t anvilMemGetInfo(size_t* free_bytes, size_t* total_bytes, int device) {
  if (free_bytes == nullptr) return FailNull("anvilMemGetInfo", "free_bytes");
  if (total_bytes == nullptr) return FailNull("anvilMemGetInfo", "total_bytes");
  return WithAllocator(device, [&](DeviceAllocator& allocator) {
    *total_bytes = allocator.limit();
    *free_bytes =
        FreeBytes(allocator.limit(), allocator.GetUsage(), AvailableMemory(ReadHostMemory("")));
  });
}

anvilError_t anvilMemEmptyCache(int device) {
  return WithAllocator(device, [](DeviceAllocator& allocator) { allocator.EmptyCache(); });
}

anvilError_t anvilMemGetStats(anvilMemoryStats* stats, int device) {
  if (stats == nullptr) return FailNull("anvilMemGetStats", "stats");
  return WithAllocator(device, [&](DeviceAllocator& allocator) { *stats = allocator.GetStats(); });
}

anvilError_t anvilMemResetPeakStats(int device) {
  return WithAllocator(device, [](DeviceAllocator& allocator) { allocator.ResetPeakStats(); });
}

anvilError_t anvilMemResetAccumulatedStats(int device) {
  return WithAllocator(device,
                       [](DeviceAllocator& allocator) { allocator.ResetAccumulatedStats(); });
}

anvilError_t anvilMemGetTagStats(anvilTagStats* stats, size_t capacity, size_t* count, int device) {
  if (count == nullptr) return FailNull("anvilMemGetTagStats", "count");
  if (stats == nullptr && capacity > 0) return FailNull("anvilMemGetTagStats", "stats");
  return WithAllocator(device, [&](DeviceAllocator& allocator) {
    const std::vector<anvilTagStats> tags = allocator.GetTagStats();
    *count = tags.size();
    std::copy_n(tags.begin(), std::min(capacity, tags.size()), stats);
  });
}
