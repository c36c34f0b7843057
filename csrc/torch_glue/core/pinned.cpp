// SPDX-License-Identifier: Apache-2.0
#include "core/pinned.h"

#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/statistics.h"
#include "core/stream.h"

namespace anvil {
namespace {

class Uses {
 public:
  void add(void* base, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[reinterpret_cast<uintptr_t>(base)].bytes = bytes;
  }

  bool record(const void* address, anvilStream_t stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto target = reinterpret_cast<uintptr_t>(address);
    auto found = blocks_.upper_bound(target);
    if (found == blocks_.begin()) return false;
    --found;
    if (target - found->first >= found->second.bytes) return false;
    // A graph's copies run whenever it is replayed: its user keeps their memory.
    if (anvilStreamIsCapturing(stream) != 0) return true;
    anvilEvent_t& event = found->second.events[stream];
    if (event == nullptr) check(anvilEventCreate(&event, ANVIL_EVENT_DEFAULT));
    check(anvilEventRecord(event, stream));
    return true;
  }

  void release(void* base) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(base));
    if (found == blocks_.end()) return;
    found->second.released = true;
    free_if_done(found);
  }

  // Frees what was released and is no longer in use.
  void sweep() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto at = blocks_.begin(); at != blocks_.end();) {
      const auto next = std::next(at);
      if (at->second.released) free_if_done(at);
      at = next;
    }
  }

 private:
  struct Block {
    size_t bytes = 0;
    bool released = false;
    std::map<anvilStream_t, anvilEvent_t> events;
  };
  using Blocks = std::map<uintptr_t, Block>;

  void free_if_done(Blocks::iterator block) {
    auto& events = block->second.events;
    for (auto at = events.begin(); at != events.end();) {
      if (anvilEventQuery(at->second) == ANVIL_ERROR_NOT_READY) {
        ++at;
      } else {
        anvilEventDestroy(at->second);
        at = events.erase(at);
      }
    }
    if (!events.empty()) {
      waiting_ = true;
      return;
    }
    anvilHostFree(reinterpret_cast<void*>(block->first));
    blocks_.erase(block);
  }

  std::mutex mutex_;
  Blocks blocks_;  // by address
  bool waiting_ = false;
};

Uses& uses() {
  static auto* all = new Uses;  // leaked: memory is freed during static destruction too
  return *all;
}

void free_pinned(void* data) {
  if (data != nullptr) uses().release(data);
}

class PinnedAllocator final : public at::HostAllocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    uses().sweep();
    void* data = nullptr;
    check(anvilHostAlloc(&data, bytes));
    if (data != nullptr) uses().add(data, bytes);
    return {data, data, &free_pinned, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }

  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

  bool record_event(void* data, void* /*context*/, c10::Stream stream) override {
    return keep_pinned_until_now(data, stream_handle(stream));
  }

  void empty_cache() override {
    uses().sweep();
    check(anvilHostEmptyCache());
  }

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

at::HostAllocator* pinned_allocator() {
  static auto* allocator = new PinnedAllocator;
  return allocator;
}

bool keep_pinned_until_now(const void* address, anvilStream_t stream) {
  return uses().record(address, stream);
}

}  // namespace anvil
