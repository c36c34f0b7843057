// SPDX-License-Identifier: Apache-2.0
// The entry points for device memory.
#include <algorithm>

#include "available_memory.h"
#include "device.h"
#include "graph_pool.h"
#include "memory_source.h"
#include "process.h"
#include "sanitizer.h"
#include "transfer.h"

namespace anvil {
namespace {

// Runs `body(device, allocator)` on one device.
template <typename Body>
anvilError_t WithAllocator(int device, Body&& body) {
  return Guarded([&] {
    Device* found = nullptr;
    const anvilError_t status = GetDevice(device, &found);
    if (status != ANVIL_SUCCESS) return status;
    body(*found, found->allocator);
    return ANVIL_SUCCESS;
  });
}

// What the entry points for allocation check first.
anvilError_t CheckRequest(const char* function, anvilBlock_t* block, void** ptr, unsigned flags) {
  if (block == nullptr) return FailNull(function, "block");
  if (ptr == nullptr) return FailNull(function, "ptr");
  *block = nullptr;
  *ptr = nullptr;
  if ((flags & ~ANVIL_ALLOC_ZEROED) == 0) return ANVIL_SUCCESS;
  return Fail(ANVIL_ERROR_INVALID_VALUE, std::string(function) + ": unknown flags.");
}

// What a new block has to be filled with, or -1. The whole block is, not only what was asked for:
// kernels may read up to its end.
int Contents(unsigned flags, bool dirty) {
  if ((flags & ANVIL_ALLOC_ZEROED) != 0) return dirty ? 0 : -1;
  return DebugPoison() ? kPoison : -1;
}

// Makes the block's free wait for the stream, unless it lives in its order anyway.
anvilError_t NoteUse(Block* block, anvilStream_t stream) {
  bool noted = false;
  const anvilError_t status =
      AllocatorOf(block).RecordUse(block, {stream->device->index, stream->id}, &noted);
  if (noted && block->arena == nullptr) sanitizer::BlockRecorded(block, stream);
  return status;
}

// Memory for the commands submitted to `stream` from now on.
anvilError_t AllocateInOrder(anvilStream_t stream, size_t bytes, Block** block, bool* dirty) {
  Device& device = *stream->device;
  DeviceStreams streams(device);
  if (InsideCommand()) {
    // What is submitted from here runs at once, before commands in the stream that may still use
    // what was freed in its order: only memory that is free of commands will do.
    return device.allocator.Allocate({bytes, CurrentTag()}, streams, block, dirty);
  }
  if (GraphPool* pool = CapturingPool(stream)) {
    *dirty = true;
    return pool->Allocate(bytes, block);
  }
  return device.allocator.Allocate({bytes, CurrentTag(), stream->id}, streams, block, dirty);
}

}  // namespace
}  // namespace anvil

using namespace anvil;

anvilError_t anvilMalloc(anvilBlock_t* block, void** ptr, size_t bytes, int device,
                         unsigned flags) {
  return Guarded([&] {
    anvilError_t status = CheckRequest("anvilMalloc", block, ptr, flags);
    if (status != ANVIL_SUCCESS) return status;
    Device* found = nullptr;
    status = GetDevice(device, &found);
    if (status != ANVIL_SUCCESS || bytes == 0) return status;
    DeviceStreams streams(*found);
    bool dirty = false;
    status = found->allocator.Allocate({bytes, CurrentTag()}, streams, block, &dirty);
    if (status != ANVIL_SUCCESS) return status;
    *ptr = (*block)->ptr;
    const int value = Contents(flags, dirty);
    if (value >= 0) Fill(found->workers, *ptr, value, (*block)->size);
    sanitizer::Allocated(*block, *ptr, (*block)->size, nullptr);
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilMallocAsync(anvilBlock_t* block, void** ptr, size_t bytes, anvilStream_t stream,
                              unsigned flags) {
  return Guarded([&] {
    anvilError_t status = CheckRequest("anvilMallocAsync", block, ptr, flags);
    if (status != ANVIL_SUCCESS) return status;
    if (IsForkedChild()) return FailForked();
    if (stream == nullptr) return FailNull("anvilMallocAsync", "stream");
    if (bytes == 0) return ANVIL_SUCCESS;
    Block* found = nullptr;
    bool dirty = false;
    status = AllocateInOrder(stream, bytes, &found, &dirty);
    if (status != ANVIL_SUCCESS) return status;
    if (InsideCommand()) {
      // Freed in stream order all the same, unless a command does it.
      sanitizer::Allocated(found, found->ptr, found->size, nullptr);
      found->in_command = true;
      status = NoteUse(found, stream);
    } else if (found->arena == nullptr) {
      sanitizer::Allocated(found, found->ptr, found->size, stream);
    }
    const int value = Contents(flags, dirty);
    if (value >= 0 && status == ANVIL_SUCCESS) status = FillInOrder(stream, found, value);
    if (status != ANVIL_SUCCESS) {
      anvilFree(found);
      return status;
    }
    *block = found;
    *ptr = found->ptr;
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilBlockRecordStream(anvilBlock_t block, anvilStream_t stream) {
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    if (stream == nullptr) return FailNull("anvilBlockRecordStream", "stream");
    if (block == nullptr) return ANVIL_SUCCESS;  // the block of nothing
    // What is captured is not queued: graphs notice when their memory has been freed.
    if (CapturingPool(stream) != nullptr && !InsideCommand()) return ANVIL_SUCCESS;
    return NoteUse(block, stream);
  });
}

anvilError_t anvilFree(anvilBlock_t block) {
  return Guarded([&] {
    if (block == nullptr) return ANVIL_SUCCESS;
    if (IsForkedChild()) return FailForked();
    const bool watched = DebugPoison() || sanitizer::Enabled();
    bool held_back = false;
    const anvilError_t status =
        AllocatorOf(block).Free(block, watched, InsideCommand(), &held_back);
    if (status != ANVIL_SUCCESS || !held_back) return status;
    if (block->uses == nullptr) {
      FreeHeldBack(block);
    } else {
      if (block->arena == nullptr) sanitizer::FreeDeferred(block);
      FreeAfterUses(block);
    }
    return ANVIL_SUCCESS;
  });
}

uint64_t anvilBlockGeneration(anvilBlock_t block) {
  return block == nullptr ? 0 : block->generation.load(std::memory_order_acquire);
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
  return WithAllocator(device, [&](Device&, DeviceAllocator& allocator) {
    *total_bytes = allocator.limit();
    *free_bytes = FreeBytes(allocator.limit(), allocator.GetUsage(), AvailableHostMemory());
  });
}

anvilError_t anvilMemEmptyCache(int device) {
  return WithAllocator(device, [](Device& found, DeviceAllocator& allocator) {
    DeviceStreams streams(found);
    allocator.EmptyCache(streams);
  });
}

anvilError_t anvilMemGetStats(anvilMemoryStats* stats, int device) {
  if (stats == nullptr) return FailNull("anvilMemGetStats", "stats");
  return WithAllocator(device,
                       [&](Device&, DeviceAllocator& allocator) { *stats = allocator.GetStats(); });
}

anvilError_t anvilMemResetPeakStats(int device) {
  return WithAllocator(device,
                       [](Device&, DeviceAllocator& allocator) { allocator.ResetPeakStats(); });
}

anvilError_t anvilMemResetAccumulatedStats(int device) {
  return WithAllocator(
      device, [](Device&, DeviceAllocator& allocator) { allocator.ResetAccumulatedStats(); });
}

anvilError_t anvilMemGetTagStats(anvilTagStats* stats, size_t capacity, size_t* count, int device) {
  if (count == nullptr) return FailNull("anvilMemGetTagStats", "count");
  if (stats == nullptr && capacity > 0) return FailNull("anvilMemGetTagStats", "stats");
  return WithAllocator(device, [&](Device&, DeviceAllocator& allocator) {
    const std::vector<anvilTagStats> tags = allocator.GetTagStats();
    *count = tags.size();
    std::copy_n(tags.begin(), std::min(capacity, tags.size()), stats);
  });
}

anvilError_t anvilMemSuspend(size_t* bytes, int device, const char* tag, const char* folder) {
  return Guarded([&] {
    if (bytes == nullptr) return FailNull("anvilMemSuspend", "bytes");
    if (tag == nullptr) return FailNull("anvilMemSuspend", "tag");
    Device* found = nullptr;
    const anvilError_t status = GetDevice(device, &found);
    if (status != ANVIL_SUCCESS) return status;
    DeviceStreams streams(*found);
    return found->allocator.Suspend(InternTag(tag), folder, streams, bytes);
  });
}

anvilError_t anvilMemResume(size_t* bytes, int device, const char* tag) {
  return Guarded([&] {
    if (bytes == nullptr) return FailNull("anvilMemResume", "bytes");
    if (tag == nullptr) return FailNull("anvilMemResume", "tag");
    Device* found = nullptr;
    const anvilError_t status = GetDevice(device, &found);
    if (status != ANVIL_SUCCESS) return status;
    DeviceStreams streams(*found);
    return found->allocator.Resume(InternTag(tag), streams,
                                   static_cast<int>(found->plan.cores.size()), bytes);
  });
}
