// SPDX-License-Identifier: Apache-2.0
#include "arena.h"

#include <algorithm>
#include <cstdint>

#include "memory_source.h"

namespace anvil {

ArenaZone::ArenaZone(HeapRecords* records, void* owner, Arena* arena, size_t capacity,
                     int numa_node, int device)
    : records_(records),
      owner_(owner),
      arena_(arena),
      capacity_(capacity / kSegmentGranule * kSegmentGranule),
      numa_node_(numa_node),
      device_(device) {}

ArenaZone::~ArenaZone() {
  if (base_ == nullptr) return;
  records_->blocks.Put(first_);  // one range again, since none is in use
  UnmapMemory(base_, capacity_);
}

ArenaZone::Place ArenaZone::FindPlace(size_t bytes) const {
  if (bytes > capacity_) return {};
  const size_t alignment = bytes < kPageSize ? Heap::kAlignment : kPageSize;
  const size_t size = RoundUp(bytes, alignment);
  // Before the first growth there is one free range without a record.
  if (first_ == nullptr) return {nullptr, 0, size};
  for (Block* range = first_; range != nullptr; range = range->right) {
    if (range->in_use) continue;
    const size_t begin = static_cast<size_t>(range->ptr - base_);
    const size_t offset = RoundUp(begin, alignment);
    if (offset + size <= begin + range->size) return {range, offset, size};
  }
  return {};
}

size_t ArenaZone::GrowthFor(size_t bytes) const {
  const Place place = FindPlace(bytes);
  if (place.size == 0) return SIZE_MAX;
  const size_t end = RoundUp(place.offset + place.size, kSegmentGranule);
  return end > reserved_bytes_ ? end - reserved_bytes_ : 0;
}

bool ArenaZone::Grow(size_t growth) {
  if (base_ == nullptr) {
    if (!records_->blocks.Reserve(1)) return false;
    base_ = ReserveAddresses(capacity_, numa_node_, device_);
    if (base_ == nullptr) return false;
    first_ = NewRange(0, capacity_, nullptr, nullptr);
  }
  if (!BackAddresses(base_, reserved_bytes_, growth)) return false;
  reserved_bytes_ += growth;
  return true;
}

Block* ArenaZone::NewRange(size_t offset, size_t size, Block* left, Block* right) {
  Block* range = records_->blocks.Take();
  range->ptr = base_ + offset;
  range->size = size;
  range->kind = Block::Kind::kArena;
  range->dirty = true;  // written by every replay
  range->owner = owner_;
  range->arena = arena_;
  range->pool = arena_->pool();
  range->left = left;
  range->right = right;
  if (left != nullptr) left->right = range;
  if (right != nullptr) right->left = range;
  return range;
}

Block* ArenaZone::Allocate(size_t bytes) {
  const Place place = FindPlace(bytes);
  if (place.range == nullptr || place.offset + place.size > reserved_bytes_) return nullptr;
  if (!records_->blocks.Reserve(2)) return nullptr;
  Block* block = place.range;
  const size_t begin = static_cast<size_t>(block->ptr - base_);
  const size_t end = begin + block->size;
  if (place.offset > begin) {  // what lies before the aligned place stays free
    block->size = place.offset - begin;
    block = NewRange(place.offset, end - place.offset, block, block->right);
  }
  if (place.offset + place.size < end) {
    block->size = place.size;
    NewRange(place.offset + place.size, end - place.offset - place.size, block, block->right);
  }
  block->in_use = true;
  block->requested = bytes;
  used_bytes_ = std::max(used_bytes_, place.offset + place.size);
  return block;
}

void ArenaZone::Free(Block* block) {
  block->in_use = false;
  Block* left = block->left;
  if (left != nullptr && !left->in_use) block = left;  // the neighbours' lower record stays
  for (Block* right = block->right; right != nullptr && !right->in_use; right = block->right) {
    block->size += right->size;
    block->right = right->right;
    if (block->right != nullptr) block->right->left = block;
    records_->blocks.Put(right);
  }
}

// ---------------------------------------------------------------- both zones

const ArenaZone& Arena::ZoneFor(size_t bytes) const {
  // A small block that stays costs the large zone at most its own size and the rest of a gap.
  // Relative to what captures have needed so far, since the blocks of a larger batch are larger.
  constexpr size_t kSmallPart = 64;
  return bytes <= large_.used_bytes() / kSmallPart ? small_ : large_;
}

Block* Arena::Allocate(size_t bytes) {
  Block* block = ZoneFor(bytes).Allocate(bytes);
  if (block != nullptr) allocated_bytes_ += block->size;
  return block;
}

void Arena::Free(Block* block) {
  allocated_bytes_ -= block->size;
  (small_.Contains(block) ? small_ : large_).Free(block);
}

}  // namespace anvil
