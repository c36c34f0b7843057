// SPDX-License-Identifier: Apache-2.0
// The memory behind the graphs of one pool. Captures come one after another and free most of what
// they allocate, so that they can share it; what they keep, such as outputs, stays where it is and
// must not cut it into pieces that the next, larger capture has no use for. Hence two zones: one
// for large blocks, and one for those that are small beside them. Like a heap an arena knows
// nothing of limits, statistics and locks.
#pragma once

#include <cstddef>
#include <memory>

#include "heap.h"

namespace anvil {

class Arena;
class GraphPool;

// A range of reserved addresses, backed from its start up to a high-water mark. Blocks are placed
// first fit at the lowest address.
class ArenaZone {
 public:
  ArenaZone(HeapRecords* records, void* owner, Arena* arena, size_t capacity, int numa_node,
            int device);
  // Returns the memory to the operating system; no block is in use any more.
  ~ArenaZone();
  ArenaZone(const ArenaZone&) = delete;
  ArenaZone& operator=(const ArenaZone&) = delete;

  Block* Allocate(size_t bytes);
  void Free(Block* block);
  size_t GrowthFor(size_t bytes) const;
  bool Grow(size_t growth);

  bool Contains(const Block* block) const {
    return static_cast<size_t>(block->ptr - base_) < capacity_;
  }
  size_t reserved_bytes() const { return reserved_bytes_; }
  size_t used_bytes() const { return used_bytes_; }

 private:
  struct Place {
    Block* range;  // free; null: there is no place
    size_t offset;
    size_t size;
  };
  Place FindPlace(size_t bytes) const;
  Block* NewRange(size_t offset, size_t size, Block* left, Block* right);

  HeapRecords* const records_;
  void* const owner_;
  Arena* const arena_;
  const size_t capacity_;
  const int numa_node_;
  const int device_;
  std::byte* base_ = nullptr;  // reserved at the first growth
  Block* first_ = nullptr;  // the ranges, by address: handed out or free, no two free ones in a row
  size_t reserved_bytes_ = 0;  // backed
  size_t used_bytes_ = 0;      // up to the highest end of a block so far
};

class Arena {
 public:
  // `capacity`: bytes of addresses for each zone. `records` and `owner` outlive the arena; `owner`
  // and `pool` are not looked at.
  Arena(HeapRecords* records, void* owner, GraphPool* pool, size_t capacity, int numa_node,
        int device)
      : pool_(pool),
        large_(records, owner, this, capacity, numa_node, device),
        small_(records, owner, this, capacity, numa_node, device) {}

  // A block of at least `bytes` > 0 at the lowest address where it fits; null when the arena has to
  // grow before, or when the system has no memory for records.
  Block* Allocate(size_t bytes);
  // Frees the place at once. Never fails.
  void Free(Block* block);

  // Bytes by which the arena has to grow for Allocate(bytes) to succeed; SIZE_MAX when it cannot.
  size_t GrowthFor(size_t bytes) const { return ZoneFor(bytes).GrowthFor(bytes); }
  // Backs that many more bytes. False, with errno, when the host refuses.
  bool Grow(size_t bytes) { return ZoneFor(bytes).Grow(GrowthFor(bytes)); }

  size_t allocated_bytes() const { return allocated_bytes_; }  // blocks handed out
  size_t reserved_bytes() const { return large_.reserved_bytes() + small_.reserved_bytes(); }
  GraphPool* pool() const { return pool_; }

  // Kept while any block is handed out.
  std::shared_ptr<GraphPool> keeper;

 private:
  // The same until the next block is handed out.
  const ArenaZone& ZoneFor(size_t bytes) const;
  ArenaZone& ZoneFor(size_t bytes) {
    return const_cast<ArenaZone&>(static_cast<const Arena*>(this)->ZoneFor(bytes));
  }

  GraphPool* const pool_;
  ArenaZone large_, small_;
  size_t allocated_bytes_ = 0;
};

}  // namespace anvil
