// SPDX-License-Identifier: Apache-2.0
#include "graph_pool.h"

#include "device.h"
#include "error.h"
#include "process.h"

namespace anvil {

GraphPool::GraphPool(Device* device) : device_(device), arena_(device->allocator.NewArena(this)) {}

GraphPool::~GraphPool() {
  DeviceStreams streams(*device_);
  device_->allocator.Retire(std::move(arena_), streams);
}

anvilError_t GraphPool::Allocate(size_t bytes, Block** block) {
  DeviceStreams streams(*device_);
  return device_->allocator.Allocate(*arena_, bytes, shared_from_this(), streams, block);
}

DeviceAllocator::Usage GraphPool::GetUsage() const { return device_->allocator.GetUsage(*arena_); }

}  // namespace anvil

using namespace anvil;

anvilError_t anvilGraphPoolCreate(anvilGraphPool_t* pool, int device) {
  return Guarded([&] {
    if (pool == nullptr) return FailNull("anvilGraphPoolCreate", "pool");
    *pool = nullptr;
    Device* found = nullptr;
    const anvilError_t status = GetDevice(device, &found);
    if (status == ANVIL_SUCCESS) *pool = new anvilGraphPool_st{std::make_shared<GraphPool>(found)};
    return status;
  });
}

anvilError_t anvilGraphPoolDestroy(anvilGraphPool_t pool) {
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    if (pool == nullptr) return FailNull("anvilGraphPoolDestroy", "pool");
    delete pool;
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilGraphPoolGetInfo(anvilGraphPool_t pool, size_t* allocated_bytes,
                                   size_t* reserved_bytes) {
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    if (pool == nullptr) return FailNull("anvilGraphPoolGetInfo", "pool");
    if (allocated_bytes == nullptr) return FailNull("anvilGraphPoolGetInfo", "allocated_bytes");
    if (reserved_bytes == nullptr) return FailNull("anvilGraphPoolGetInfo", "reserved_bytes");
    const DeviceAllocator::Usage usage = pool->pool->GetUsage();
    *allocated_bytes = usage.reserved - usage.idle;
    *reserved_bytes = usage.reserved;
    return ANVIL_SUCCESS;
  });
}
