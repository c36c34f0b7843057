// SPDX-License-Identifier: Apache-2.0
// The caching allocator of one device: a heap for each tag, one hard limit, exact statistics.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "anvil/runtime.h"
#include "heap.h"

namespace anvil {

class DeviceAllocator {
 public:
  // `limit` bounds the bytes mapped from the operating system, over all tags.
  DeviceAllocator(int device, int numa_node, size_t limit)
      : device_(device), numa_node_(numa_node), limit_(limit) {}
  DeviceAllocator(const DeviceAllocator&) = delete;
  DeviceAllocator& operator=(const DeviceAllocator&) = delete;

  // A block of at least `bytes` > 0 from the pool of `tag` (memory_tag.h). `*dirty` tells whether
  // its memory may be other than zero. Fails with ANVIL_ERROR_OUT_OF_MEMORY.
  anvilError_t Allocate(size_t bytes, int tag, Block** block, bool* dirty);
  // Fails when the block is not in use.
  anvilError_t Free(Block* block);

  void EmptyCache();

  struct Usage {
    size_t reserved;  // mapped
    size_t idle;      // the part of it that EmptyCache would return
  };
  Usage GetUsage();
  size_t limit() const { return limit_; }
  int device() const { return device_; }

  anvilMemoryStats GetStats();
  void ResetPeakStats();
  void ResetAccumulatedStats();
  // Tags that have a pool here, in order of first use.
  std::vector<anvilTagStats> GetTagStats();

 private:
  enum class Growth { kGrown, kLimit, kHostRefused };

  Heap& HeapOf(int tag);
  Block* AllocateSlowly(Heap& heap, size_t bytes, Growth* growth);
  Growth Grow(Heap& heap, size_t bytes);
  void ReleaseIdleSegments();
  anvilError_t FailOutOfMemory(size_t bytes, Growth reason);

  const int device_;
  const int numa_node_;
  const size_t limit_;
  // One lock for all: the statistics have to be exact across tags, and what it guards is short
  // except when the operating system is asked.
  std::mutex mutex_;
  HeapRecords records_;
  std::vector<std::unique_ptr<Heap>> heaps_;  // by tag; null where the tag is not in use here
  anvilMemoryStats stats_{};
};

// What can still be allocated: bounded by the limit and by what the host has. What is idle here
// counts as taken in the host's figures, but is ours to use again.
inline size_t FreeBytes(size_t limit, const DeviceAllocator::Usage& usage, size_t host_available) {
  return std::min(limit - (usage.reserved - usage.idle), host_available + usage.idle);
}

// Statistics in the making: current, its peak, and the running totals.
inline void Increase(anvilStat& stat, size_t amount) {
  const int64_t by = static_cast<int64_t>(amount);
  stat.allocated += by;
  stat.current += by;
  if (stat.current > stat.peak) stat.peak = stat.current;
}
inline void Decrease(anvilStat& stat, size_t amount) {
  stat.freed += static_cast<int64_t>(amount);
  stat.current -= static_cast<int64_t>(amount);
}
inline void ResetPeak(anvilStat& stat) { stat.peak = stat.current; }
inline void ResetAccumulated(anvilStat& stat) { stat.allocated = stat.freed = 0; }

}  // namespace anvil
