// SPDX-License-Identifier: Apache-2.0
#include "core/allocator.h"

#include <cstring>

#include "core/device.h"
#include "core/host_pool.h"
#include "core/storage.h"

namespace anvil {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

void fill(Stat& to, const anvilStat& from) {
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
}

// The runtime keeps one figure over all pools; PyTorch's breakdown into small and large pools has
// no counterpart.
void fill(StatArray& to, const anvilStat& from) {
  fill(to[static_cast<size_t>(StatType::AGGREGATE)], from);
}

class AnvilAllocator final : public c10::DeviceAllocator {
 public:
  at::DataPtr allocate(size_t bytes) override { return new_data_ptr(bytes, current_device()); }

  // Freeing needs the twin, which an address does not name.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

  bool initialized() override { return anvilIsInitialized() != 0; }

  void emptyCache(c10::MempoolId_t /*pool*/) override {
    for (c10::DeviceIndex device = 0; device < device_count(); ++device)
      check(anvilMemEmptyCache(device));
  }

  // Streams are synchronous: work that used the memory has ended when its last reference goes.
  void recordStream(const at::DataPtr& /*data*/, c10::Stream /*stream*/) override {}

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    anvilMemoryStats stats;
    check(anvilMemGetStats(&stats, device));
    c10::CachingDeviceAllocator::DeviceStats result;
    fill(result.allocation, stats.allocation);
    fill(result.segment, stats.segment);
    fill(result.active, stats.allocation);
    fill(result.allocated_bytes, stats.allocated_bytes);
    fill(result.active_bytes, stats.allocated_bytes);
    fill(result.reserved_bytes, stats.reserved_bytes);
    fill(result.requested_bytes, stats.requested_bytes);
    result.num_alloc_retries = stats.num_alloc_retries;
    result.num_ooms = stats.num_ooms;
    result.num_device_alloc = stats.segment.allocated;
    result.num_device_free = stats.segment.freed;
    return result;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    check(anvilMemResetAccumulatedStats(device));
  }

  void resetPeakStats(c10::DeviceIndex device) override { check(anvilMemResetPeakStats(device)); }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    check(anvilMemGetInfo(&free_bytes, &total_bytes, device));
    return {free_bytes, total_bytes};
  }
};

void free_pinned(void* data) { anvilHostFree(data); }

class PinnedAllocator final : public at::HostAllocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    check(anvilHostAlloc(&data, bytes));
    return {data, data, &free_pinned, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }

  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

  // Copies have ended when they return, so nothing holds the memory back; false for memory that is
  // not pinned.
  bool record_event(void* data, void* /*context*/, c10::Stream /*stream*/) override {
    return anvilHostIsPinned(data) != 0;
  }

  void empty_cache() override { check(anvilHostEmptyCache()); }

  at::HostStats get_stats() override {
    anvilHostStats stats;
    check(anvilHostGetStats(&stats));
    at::HostStats result;
    fill(result.active_requests, stats.allocation);
    fill(result.active_bytes, stats.allocated_bytes);
    fill(result.allocations, stats.allocation);
    fill(result.allocated_bytes, stats.reserved_bytes);
    return result;
  }

  void reset_accumulated_stats() override { check(anvilHostResetAccumulatedStats()); }
  void reset_peak_stats() override { check(anvilHostResetPeakStats()); }
};

}  // namespace

c10::DeviceAllocator* device_allocator() {
  static auto* allocator = new AnvilAllocator;  // leaked: storages may outlive every other static
  return allocator;
}

at::HostAllocator* pinned_allocator() {
  static auto* allocator = new PinnedAllocator;
  return allocator;
}

}  // namespace anvil
