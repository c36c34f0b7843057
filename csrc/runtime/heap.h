// SPDX-License-Identifier: Apache-2.0
// The bookkeeping of one memory pool: blocks, size classes, splitting and coalescing. It knows
// nothing of limits, statistics and locks (allocator.h), nor of the operating system
// (memory_source.h): segments are handed to it and taken from it.
//
//   small   up to 32 KiB: a chunk of a span; all chunks of a span have one size
//   medium  up to 32 MiB: pages of a segment, best fit, split and coalesced
//   huge    larger: a segment of its own, never split
//
// A span is itself a medium block, so that small memory returns to the operating system as well.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "anvil/runtime.h"

namespace anvil {

class Arena;
class GraphPool;
class Heap;
struct Span;
struct StreamUses;

// What a block is now; the record outlives it (RecordStore).
struct BlockState {
  enum class Kind : uint8_t { kSmall, kMedium, kHuge, kArena };

  std::byte* ptr;
  size_t size;          // usable bytes
  size_t requested;     // as asked for; only while handed out
  Heap* heap;           // null: of an arena
  Span* span;           // of a small block
  anvilBlock_st* next;  // in a free list
  StreamUses* uses;     // by other streams (allocator.h); only while handed out
  Kind kind;
  bool in_use;
  bool held_back;       // freed, but commands may still use it
  bool in_command;      // allocated by a running command
  bool dirty;           // written since it was mapped: not known to be zero
  anvilBlock_st* prev;  // in a bin
  anvilBlock_st* left;  // medium, arena: neighbours by address
  anvilBlock_st* right;
  uint64_t freed_at;  // the caller's clock when any part of a free block was last freed
  void* owner;        // of the heap or arena; never gone
  Arena* arena;
  GraphPool* pool;  // of the arena

  bool is_segment() const { return left == nullptr && right == nullptr; }
};

}  // namespace anvil

// One block, free or handed out. Also the handle that callers hold.
struct anvilBlock_st : anvil::BlockState {
  // Counts how often the record's blocks were freed. Asked of freed blocks too, by any thread, so
  // that it goes on over the record's lives.
  std::atomic<uint64_t> generation{0};

  void Reset() { static_cast<anvil::BlockState&>(*this) = {}; }
  void NextGeneration() {
    generation.store(generation.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
};

namespace anvil {

using Block = anvilBlock_st;

// Storage for records of one type: taken from the system in slabs, reused, never given back.
template <typename T>
class RecordStore {
 public:
  // Null when the system has no memory.
  T* Take();
  void Put(T* record);
  // Makes sure that the next `count` calls of Take succeed.
  bool Reserve(size_t count);

 private:
  T* free_ = nullptr;
  size_t free_count_ = 0;
};

// A medium block carved into chunks of one size.
struct Span {
  Block* memory;  // the medium block
  Block* free;    // chunks that were handed out before
  Span* next;     // in the class's list of spans with room
  Span* prev;
  uint32_t carved;    // chunks cut off so far: records exist for these only
  uint32_t capacity;  // chunks in all
  uint32_t live;      // chunks handed out
  uint32_t size_class;
  bool listed;
  uint64_t freed_at;  // of the latest of its chunks

  void Reset() { *this = {}; }
};

struct HeapRecords {
  RecordStore<Block> blocks;
  RecordStore<Span> spans;
};

class Heap {
 public:
  static constexpr size_t kSmallMax = size_t{32} << 10;
  static constexpr size_t kMediumMax = size_t{32} << 20;
  static constexpr size_t kAlignment = 64;

  // `records` and `owner` outlive the heap. `owner`, `tag` and `stream` are not looked at.
  Heap(HeapRecords* records, void* owner, int tag, uint64_t stream)
      : records_(records), owner_(owner), tag_(tag), stream_(stream) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // A block of at least `bytes` > 0 from what the heap holds; null when it needs another segment
  // (or, with records_exhausted(), when the system has no memory for the heap's own records).
  Block* Allocate(size_t bytes);
  // `freed_at`: when it was freed, on a clock of the caller's, for TakeIdleSegments.
  void Free(Block* block, uint64_t freed_at);

  // Bytes of the segment that lets Allocate(bytes) succeed: at least that, more when the heap is
  // large already, so that a growing heap does not end up in many small segments.
  size_t SegmentSize(size_t bytes, bool least) const;
  // Adds an untouched mapping; false when there is no memory for its record.
  bool AddSegment(std::byte* base, size_t size);

  struct Segment {
    std::byte* base;
    size_t size;
  };
  const std::vector<Segment>& segments() const { return segments_; }
  // Takes out every segment without a block in use, and of which nothing was freed at `before` or
  // later.
  void TakeIdleSegments(uint64_t before, std::vector<Segment>* segments);

  size_t allocated_bytes() const { return allocated_bytes_; }  // blocks handed out
  size_t reserved_bytes() const { return reserved_bytes_; }    // segments
  size_t idle_bytes() const { return idle_bytes_; }            // segments without a block in use
  bool records_exhausted() const { return records_exhausted_; }
  int tag() const { return tag_; }
  uint64_t stream() const { return stream_; }
  void set_stream(uint64_t stream) { stream_ = stream; }

 private:
  // 64-byte steps up to 512 bytes, then four steps for each doubling.
  static constexpr size_t kClasses = 32;
  // By pages: one bin each below 8, then eight for each doubling, and one for huge blocks.
  static constexpr size_t kHugeBin = 89;
  static constexpr size_t kBins = 90;

  static uint32_t ClassOf(size_t bytes);
  static size_t ClassSize(uint32_t size_class);
  static size_t BinOf(size_t size);

  Block* AllocateSmall(size_t bytes);
  Block* AllocateMedium(size_t bytes);
  Block* AllocateHuge(size_t bytes);
  Block* NewRecord();
  void FreeSmall(Block* block, uint64_t freed_at);
  void FreeMedium(Block* block);
  Span* NewSpan(uint32_t size_class);
  void ReleaseSpan(Span* span);
  void ListSpan(Span* span);
  void UnlistSpan(Span* span);
  void PushFree(Block* block);
  void RemoveFree(Block* block);

  HeapRecords* const records_;
  void* const owner_;
  const int tag_;
  uint64_t stream_;
  size_t allocated_bytes_ = 0;
  size_t reserved_bytes_ = 0;
  size_t idle_bytes_ = 0;
  bool records_exhausted_ = false;
  std::vector<Segment> segments_;
  std::array<Span*, kClasses> spans_{};  // those with room, the one in use first
  std::array<Block*, kBins> bins_{};
  std::array<uint64_t, 2> occupied_{};  // one bit for each bin
};

}  // namespace anvil
