// SPDX-License-Identifier: Apache-2.0
#include "heap.h"

#include <algorithm>
#include <bit>
#include <new>

#include "memory_source.h"

namespace anvil {

template <typename T>
bool RecordStore<T>::Reserve(size_t count) {
  constexpr size_t kSlab = (size_t{64} << 10) / sizeof(T);
  while (free_count_ < count) {
    T* slab = new (std::nothrow) T[kSlab]{};
    if (slab == nullptr) return false;
    for (size_t i = 0; i < kSlab; ++i) Put(&slab[i]);
  }
  return true;
}

template <typename T>
T* RecordStore<T>::Take() {
  if (free_ == nullptr && !Reserve(1)) return nullptr;
  T* record = free_;
  free_ = record->next;
  --free_count_;
  record->Reset();
  return record;
}

template <typename T>
void RecordStore<T>::Put(T* record) {
  record->next = free_;
  free_ = record;
  ++free_count_;
}

template class RecordStore<Block>;
template class RecordStore<Span>;

// ---------------------------------------------------------------- size classes

uint32_t Heap::ClassOf(size_t bytes) {
  if (bytes <= 512) return static_cast<uint32_t>((bytes - 1) / 64);
  const size_t last = bytes - 1;
  const int log = std::bit_width(last) - 1;
  return static_cast<uint32_t>(8 + (log - 9) * 4) + ((last >> (log - 2)) & 3);
}

size_t Heap::ClassSize(uint32_t size_class) {
  if (size_class < 8) return (size_class + 1) * 64;
  const uint32_t step = size_class - 8;
  const size_t base = size_t{512} << (step / 4);
  return base + (step % 4 + 1) * (base / 4);
}

size_t Heap::BinOf(size_t size) {
  if (size > kMediumMax) return kHugeBin;
  const size_t pages = size / kPageSize;
  if (pages < 8) return pages;
  const int log = std::bit_width(pages) - 1;
  return 8 + static_cast<size_t>(log - 3) * 8 + ((pages >> (log - 3)) & 7);
}

// ---------------------------------------------------------------- bins of free blocks

void Heap::PushFree(Block* block) {
  const size_t bin = BinOf(block->size);
  block->in_use = false;
  block->prev = nullptr;
  block->next = bins_[bin];
  if (block->next != nullptr) block->next->prev = block;
  bins_[bin] = block;
  occupied_[bin / 64] |= uint64_t{1} << (bin % 64);
  if (block->is_segment()) idle_bytes_ += block->size;
}

void Heap::RemoveFree(Block* block) {
  const size_t bin = BinOf(block->size);
  if (block->next != nullptr) block->next->prev = block->prev;
  if (block->prev != nullptr) {
    block->prev->next = block->next;
  } else {
    bins_[bin] = block->next;
    if (block->next == nullptr) occupied_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
  }
  block->in_use = true;
  if (block->is_segment()) idle_bytes_ -= block->size;
}

// ---------------------------------------------------------------- allocation

Block* Heap::Allocate(size_t bytes) {
  records_exhausted_ = false;
  Block* block = bytes <= kSmallMax    ? AllocateSmall(bytes)
                 : bytes <= kMediumMax ? AllocateMedium(RoundUp(bytes, kPageSize))
                                       : AllocateHuge(RoundUp(bytes, kSegmentGranule));
  if (block == nullptr) return nullptr;
  block->requested = bytes;
  allocated_bytes_ += block->size;
  return block;
}

void Heap::Free(Block* block, uint64_t freed_at) {
  allocated_bytes_ -= block->size;
  block->dirty = true;
  if (block->kind == Block::Kind::kSmall) return FreeSmall(block, freed_at);
  block->freed_at = freed_at;
  if (block->kind == Block::Kind::kMedium) return FreeMedium(block);
  PushFree(block);
}

Block* Heap::NewRecord() {
  Block* block = records_->blocks.Take();
  if (block == nullptr) return nullptr;
  block->heap = this;
  block->owner = owner_;
  return block;
}

Block* Heap::AllocateMedium(size_t size) {
  const size_t first = BinOf(size);
  // The request's own bin holds blocks that are a little smaller as well: look for the best of the
  // first few. Every block of a later bin fits, and the first of them is within an eighth of best.
  Block* best = nullptr;
  int looked_at = 0;
  for (Block* block = bins_[first]; block != nullptr && looked_at < 32; block = block->next) {
    if (block->size >= size && (best == nullptr || block->size < best->size)) best = block;
    ++looked_at;
  }
  for (size_t bin = first + 1; best == nullptr && bin < kHugeBin; ++bin) {
    const uint64_t ahead = occupied_[bin / 64] >> (bin % 64);
    if (ahead == 0) {
      bin |= 63;  // on to the next word
      continue;
    }
    bin += static_cast<size_t>(std::countr_zero(ahead));
    if (bin < kHugeBin) best = bins_[bin];
  }
  if (best == nullptr) return nullptr;
  if (best->size == size) {
    RemoveFree(best);
    return best;
  }
  Block* rest = NewRecord();
  if (rest == nullptr) {
    records_exhausted_ = true;
    return nullptr;
  }
  RemoveFree(best);
  rest->ptr = best->ptr + size;
  rest->size = best->size - size;
  rest->kind = Block::Kind::kMedium;
  rest->dirty = best->dirty;
  rest->freed_at = best->freed_at;
  rest->left = best;
  rest->right = best->right;
  if (rest->right != nullptr) rest->right->left = rest;
  best->right = rest;
  best->size = size;
  PushFree(rest);
  return best;
}

void Heap::FreeMedium(Block* block) {
  for (Block* neighbour : {block->right, block->left}) {
    if (neighbour == nullptr || neighbour->in_use) continue;
    RemoveFree(neighbour);
    Block* low = neighbour->ptr < block->ptr ? neighbour : block;
    Block* high = low == block ? neighbour : block;
    low->size += high->size;
    low->dirty = low->dirty || high->dirty;
    low->freed_at = std::max(low->freed_at, high->freed_at);
    low->right = high->right;
    if (low->right != nullptr) low->right->left = low;
    high->in_use = false;  // so that freeing its handle again is noticed
    records_->blocks.Put(high);
    block = low;
  }
  PushFree(block);
}

Block* Heap::AllocateHuge(size_t size) {
  Block* best = nullptr;
  for (Block* block = bins_[kHugeBin]; block != nullptr; block = block->next) {
    // A quarter of waste is the most: a cached block that is much too large is better unmapped.
    const bool fits = block->size >= size && block->size - size <= size / 4;
    if (fits && (best == nullptr || block->size < best->size)) best = block;
  }
  if (best != nullptr) RemoveFree(best);
  return best;
}

// ---------------------------------------------------------------- small blocks

void Heap::ListSpan(Span* span) {
  Span*& head = spans_[span->size_class];
  span->prev = nullptr;
  span->next = head;
  if (head != nullptr) head->prev = span;
  head = span;
  span->listed = true;
}

void Heap::UnlistSpan(Span* span) {
  if (span->next != nullptr) span->next->prev = span->prev;
  if (span->prev != nullptr) {
    span->prev->next = span->next;
  } else {
    spans_[span->size_class] = span->next;
  }
  span->listed = false;
}

Span* Heap::NewSpan(uint32_t size_class) {
  const size_t chunk = ClassSize(size_class);
  // At least eight chunks, whole pages.
  const size_t size = RoundUp(std::max<size_t>(size_t{64} << 10, 8 * chunk), kPageSize);
  if (!records_->spans.Reserve(1)) {
    records_exhausted_ = true;
    return nullptr;
  }
  Block* memory = AllocateMedium(size);
  if (memory == nullptr) return nullptr;
  Span* span = records_->spans.Take();
  span->memory = memory;
  span->capacity = static_cast<uint32_t>(size / chunk);
  span->size_class = size_class;
  ListSpan(span);
  return span;
}

Block* Heap::AllocateSmall(size_t bytes) {
  const uint32_t size_class = ClassOf(bytes);
  Span* span = spans_[size_class];
  if (span == nullptr) {
    span = NewSpan(size_class);
    if (span == nullptr) return nullptr;
  }
  Block* block = span->free;
  if (block != nullptr) {
    span->free = block->next;
  } else {
    block = NewRecord();
    if (block == nullptr) {
      records_exhausted_ = true;
      return nullptr;
    }
    block->size = ClassSize(size_class);
    block->ptr = span->memory->ptr + span->carved * block->size;
    block->span = span;
    block->kind = Block::Kind::kSmall;
    block->dirty = span->memory->dirty;
    ++span->carved;
  }
  block->in_use = true;
  ++span->live;
  if (span->free == nullptr && span->carved == span->capacity) UnlistSpan(span);
  return block;
}

void Heap::FreeSmall(Block* block, uint64_t freed_at) {
  Span* span = block->span;
  span->freed_at = std::max(span->freed_at, freed_at);
  block->in_use = false;
  block->next = span->free;
  span->free = block;
  --span->live;
  if (!span->listed) ListSpan(span);
  // The last span with room stays, so that a single block that comes and goes stays cheap.
  const bool only = span->next == nullptr && span->prev == nullptr;
  if (span->live == 0 && !only) ReleaseSpan(span);
}

void Heap::ReleaseSpan(Span* span) {
  UnlistSpan(span);
  for (Block* block = span->free; block != nullptr;) {
    Block* next = block->next;
    records_->blocks.Put(block);
    block = next;
  }
  // What was never carved is still as clean as before, but the block is one piece again.
  span->memory->dirty = span->memory->dirty || span->carved > 0;
  span->memory->freed_at = std::max(span->memory->freed_at, span->freed_at);
  FreeMedium(span->memory);
  records_->spans.Put(span);
}

// ---------------------------------------------------------------- segments

size_t Heap::SegmentSize(size_t bytes, bool least) const {
  if (bytes > kMediumMax) return RoundUp(bytes, kSegmentGranule);
  // A span is the largest block behind a small one: 256 KiB.
  const size_t needed = RoundUp(std::max(bytes, 8 * kSmallMax), kSegmentGranule);
  const size_t growth = RoundUp(std::min(reserved_bytes_ / 8, kMediumMax), kSegmentGranule);
  return least ? needed : std::max(needed, growth);
}

bool Heap::AddSegment(std::byte* base, size_t size) {
  try {
    segments_.push_back({base, size});
  } catch (const std::bad_alloc&) {
    return false;
  }
  Block* block = NewRecord();
  if (block == nullptr) {
    segments_.pop_back();
    return false;
  }
  block->ptr = base;
  block->size = size;
  block->kind = size > kMediumMax ? Block::Kind::kHuge : Block::Kind::kMedium;
  reserved_bytes_ += size;
  PushFree(block);
  return true;
}

void Heap::TakeIdleSegments(uint64_t before, std::vector<Segment>* segments) {
  for (Span* head : spans_) {
    for (Span* span = head; span != nullptr;) {
      Span* next = span->next;
      if (span->live == 0 && span->freed_at < before) ReleaseSpan(span);
      span = next;
    }
  }
  for (Block* head : bins_) {
    for (Block* block = head; block != nullptr;) {
      Block* next = block->next;
      if (block->is_segment() && block->freed_at < before) {
        RemoveFree(block);
        block->in_use = false;
        const Segment segment{block->ptr, block->size};
        segments->push_back(segment);
        std::erase_if(segments_, [&](const Segment& one) { return one.base == segment.base; });
        reserved_bytes_ -= block->size;
        records_->blocks.Put(block);
      }
      block = next;
    }
  }
}

}  // namespace anvil
