// SPDX-License-Identifier: Apache-2.0
#include "core/allocator.h"

#include "core/device.h"
#include "core/host_pool.h"
#include "core/statistics.h"
#include "core/storage.h"
#include "core/stream.h"
#include "core/wait.h"

namespace anvil {
namespace {

class AnvilAllocator final : public c10::DeviceAllocator {
 public:
  at::DataPtr allocate(size_t bytes) override { return new_data_ptr(bytes, current_device()); }

  // Freeing needs the twin, which an address does not name.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  // PyTorch asks for this when it makes a storage of its own out of a shared one.
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    int device = 0;
    check(anvilPointerGetDevice(&device, destination));
    anvilStream_t stream = current_stream_handle(static_cast<c10::DeviceIndex>(device));
    const LaunchSection section(stream);
    check(anvilMemcpyAsync(destination, source, bytes, stream));
  }

  bool initialized() override { return anvilIsInitialized() != 0; }

  void emptyCache(c10::MempoolId_t /*pool*/) override {
    for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
      synchronize_device(device);  // it would wait itself, with Python's lock held
      check(anvilMemEmptyCache(device));
    }
  }

  void recordStream(const at::DataPtr& data, c10::Stream stream) override {
    use_on_stream(data, stream_handle(stream));
  }

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

}  // namespace

c10::DeviceAllocator* device_allocator() {
  static auto* allocator = new AnvilAllocator;  // leaked: storages may outlive every other static
  return allocator;
}

}  // namespace anvil
