// SPDX-License-Identifier: Apache-2.0
// The caching allocator of one device: a heap for each tag and stream, the arenas of graph pools,
// one hard limit, exact statistics.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "anvil/runtime.h"
#include "arena.h"
#include "heap.h"
#include "memory_tag.h"
#include "offload_file.h"
#include "stream_order.h"

namespace anvil {

class DeviceAllocator {
 public:
  // In place of a stream: the memory is for use at once, and free of commands when it is freed.
  static constexpr uint64_t kImmediate = UINT64_MAX;

  struct Request {
    size_t bytes;  // > 0
    int tag = kDefaultTag;
    uint64_t stream = kImmediate;  // id of the one in whose order the memory is used
  };

  // `limit` bounds the bytes mapped from the operating system, over all pools.
  DeviceAllocator(int device, int numa_node, size_t limit)
      : device_(device), numa_node_(numa_node), limit_(limit) {}
  DeviceAllocator(const DeviceAllocator&) = delete;
  DeviceAllocator& operator=(const DeviceAllocator&) = delete;

  // `*dirty` tells whether the block's memory may be other than zero. Fails with
  // ANVIL_ERROR_OUT_OF_MEMORY.
  anvilError_t Allocate(const Request& request, StreamOrder& streams, Block** block, bool* dirty);

  // Ends the use of a block; fails when that has been done before. Returns it to its pool, unless
  // `hold_back` is set or other streams use it (block->uses): then `*held_back` is true, and Return
  // has to follow. Until then the block counts as allocated. `inside_command`: whoever frees it is
  // done with what a command allocated for itself.
  anvilError_t Free(Block* block, bool hold_back, bool inside_command, bool* held_back);
  // `used_since`: a command that uses it was queued after it was freed.
  void Return(Block* block, bool used_since);

  // Notes that a stream uses the block. Nothing to note when the block lives in its order anyway.
  anvilError_t RecordUse(Block* block, StreamUses::Use use, bool* noted);
  // The stream in whose order the block lives, or kImmediate.
  uint64_t StreamOf(Block* block);

  // Returns to the operating system what is idle and no queued command may use.
  void EmptyCache(StreamOrder& streams);

  // Returns the memory of a tag's blocks to the operating system; the blocks stay, at their
  // addresses, and nobody may use them until Resume. Their contents go to a file in `folder`; null:
  // they are lost, and are zeros after Resume. Fails, and leaves all as it was, when the tag is
  // suspended, when the file cannot be written, and inside a command. *bytes: what was returned.
  anvilError_t Suspend(int tag, const char* folder, StreamOrder& streams, size_t* bytes);
  // Brings memory and contents back, by so many threads. Fails, and leaves the tag suspended, when
  // it is not suspended, when there is no longer room for it, and when the file cannot be read.
  anvilError_t Resume(int tag, StreamOrder& streams, int threads, size_t* bytes);
  bool IsSuspended(const Block* block);

  std::unique_ptr<Arena> NewArena(GraphPool* pool);
  // A block of the arena, which keeps `keeper` alive.
  anvilError_t Allocate(Arena& arena, size_t bytes, const std::shared_ptr<GraphPool>& keeper,
                        StreamOrder& streams, Block** block);
  // Ends an arena without blocks; queued commands may still use its memory.
  void Retire(std::unique_ptr<Arena> arena, StreamOrder& streams);

  struct Usage {
    size_t reserved;  // mapped, and not suspended
    size_t idle;      // the part of it that EmptyCache would return
  };
  Usage GetUsage();
  Usage GetUsage(const Arena& arena);  // idle: not held by blocks
  size_t limit() const { return limit_; }
  int device() const { return device_; }

  anvilMemoryStats GetStats();
  void ResetPeakStats();
  void ResetAccumulatedStats();
  // Tags that have a pool here, by number; graph pools are under "graphs".
  std::vector<anvilTagStats> GetTagStats();

 private:
  enum class Growth { kGrown, kLimit, kHostRefused };
  struct RetiredArena {
    std::unique_ptr<Arena> arena;
    uint64_t retired_at;
  };

  struct Suspended {
    int tag;
    std::vector<OffloadFile::Range> ranges;  // the tag's segments
    std::unique_ptr<OffloadFile> file;       // null: without contents

    size_t bytes() const;
  };

  struct TagUsage {
    int tag;
    size_t allocated, reserved;
    bool suspended;
  };

  using Lock = std::unique_lock<std::mutex>;

  Heap* FindHeap(int tag, uint64_t stream);
  Heap* MakeHeap(Lock& lock, const Request& request, StreamOrder& streams);
  Block* AllocateSlowly(Lock& lock, Heap& heap, size_t bytes, StreamOrder& streams, Growth* growth);
  Growth Grow(Heap& heap, size_t bytes);
  Growth Grow(Arena& arena, size_t bytes);
  void ReleaseIdle(Lock& lock, StreamOrder& streams);
  Suspended* FindSuspended(int tag);
  void ForgetSuspended(Suspended& suspended, const std::vector<Heap::Segment>& released);
  void Count(Block* block, size_t bytes);
  void Return(Block* block, std::shared_ptr<GraphPool>* last);
  void ReleaseRetired(uint64_t before);
  std::vector<TagUsage> UsageByTag();
  anvilError_t FailOutOfMemory(size_t bytes, Growth reason, const Arena* arena);

  size_t reserved() const { return static_cast<size_t>(stats_.reserved_bytes.current); }

  const int device_;
  const int numa_node_;
  const size_t limit_;
  // One lock for all: the statistics have to be exact across pools, and what it guards is short
  // except when the operating system is asked.
  std::mutex mutex_;
  HeapRecords records_;
  // By tag, then the one used last first. Never destroyed: blocks know their heap.
  std::vector<std::vector<std::unique_ptr<Heap>>> heaps_;
  std::vector<Suspended> suspended_;
  // Of graph pools that are gone, until no command may use their memory.
  std::vector<RetiredArena> retired_;
  size_t arenas_ = 0;                                // that exist
  size_t graph_allocated_ = 0, graph_reserved_ = 0;  // in all arenas, retired ones included
  // Advances whenever memory is about to be released: what was freed before can be told from what
  // is freed meanwhile.
  uint64_t clock_ = 1;
  anvilMemoryStats stats_{};
};

inline DeviceAllocator& AllocatorOf(const Block* block) {
  return *static_cast<DeviceAllocator*>(block->owner);
}

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
