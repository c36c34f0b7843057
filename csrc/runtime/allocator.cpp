// SPDX-License-Identifier: Apache-2.0
#include "allocator.h"

#include <utility>

#include "error.h"
#include "memory_source.h"

namespace anvil {

// ---------------------------------------------------------------- pools

Heap* DeviceAllocator::FindHeap(int tag, uint64_t stream) {
  const size_t index = static_cast<size_t>(tag);
  if (index >= heaps_.size()) return nullptr;
  auto& heaps = heaps_[index];
  for (auto& heap : heaps) {
    if (heap->stream() != stream) continue;
    std::swap(heap, heaps.front());
    return heaps.front().get();
  }
  return nullptr;
}

Heap* DeviceAllocator::MakeHeap(Lock& lock, const Request& request, StreamOrder& streams) {
  std::vector<StreamOrder::Stream> existing;
  if (request.stream != kImmediate) {
    lock.unlock();
    existing = streams.Streams();
    lock.lock();
    Heap* made = FindHeap(request.tag, request.stream);  // by another thread
    if (made != nullptr) return made;
  }
  const size_t index = static_cast<size_t>(request.tag);
  if (index >= heaps_.size()) heaps_.resize(index + 1);
  // Streams come and go: a new one takes over the heap of one that is gone, with all that it holds.
  for (auto& heap : heaps_[index]) {
    if (request.stream == kImmediate || heap->stream() == kImmediate) continue;
    // Streams count upwards: a later one may have been made since we looked.
    if (heap->stream() >= request.stream) continue;
    const bool exists =
        std::any_of(existing.begin(), existing.end(),
                    [&](const StreamOrder::Stream& stream) { return stream.id == heap->stream(); });
    if (exists) continue;
    heap->set_stream(request.stream);
    return heap.get();
  }
  heaps_[index].push_back(std::make_unique<Heap>(&records_, this, request.tag, request.stream));
  return heaps_[index].back().get();
}

// ---------------------------------------------------------------- allocation

anvilError_t DeviceAllocator::Allocate(const Request& request, StreamOrder& streams, Block** block,
                                       bool* dirty) {
  Lock lock(mutex_);
  if (!suspended_.empty() && FindSuspended(request.tag) != nullptr) {
    return Fail(ANVIL_ERROR_INVALID_VALUE,
                "The memory of anvil:" + std::to_string(device_) + " under the tag " +
                    TagName(request.tag) +
                    " is suspended (asleep): nothing can be allocated there before it is resumed.");
  }
  Heap* heap = FindHeap(request.tag, request.stream);
  if (heap == nullptr) heap = MakeHeap(lock, request, streams);
  // Nothing to gain from the cache when the request alone is over the limit.
  Growth growth = request.bytes > limit_ ? Growth::kLimit : Growth::kGrown;
  Block* found = nullptr;
  if (growth == Growth::kGrown) {
    found = heap->Allocate(request.bytes);
    if (found == nullptr) found = AllocateSlowly(lock, *heap, request.bytes, streams, &growth);
  }
  if (found == nullptr) return FailOutOfMemory(request.bytes, growth, nullptr);
  Count(found, request.bytes);
  *block = found;
  *dirty = found->dirty;
  return ANVIL_SUCCESS;
}

void DeviceAllocator::Count(Block* block, size_t bytes) {
  Increase(stats_.allocation, 1);
  Increase(stats_.allocated_bytes, block->size);
  Increase(stats_.requested_bytes, bytes);
}

Block* DeviceAllocator::AllocateSlowly(Lock& lock, Heap& heap, size_t bytes, StreamOrder& streams,
                                       Growth* growth) {
  *growth = Grow(heap, bytes);
  if (*growth != Growth::kGrown) {
    ++stats_.num_alloc_retries;
    ReleaseIdle(lock, streams);
    // Something may have been freed meanwhile, when the lock was not held.
    Block* block = heap.Allocate(bytes);
    if (block != nullptr) return block;
    *growth = Grow(heap, bytes);
    if (*growth != Growth::kGrown) return nullptr;
  }
  Block* block = heap.Allocate(bytes);
  if (block == nullptr) *growth = Growth::kHostRefused;  // no memory for a record
  return block;
}

DeviceAllocator::Growth DeviceAllocator::Grow(Heap& heap, size_t bytes) {
  if (heap.records_exhausted()) return Growth::kHostRefused;
  size_t size = heap.SegmentSize(bytes, /*least=*/false);
  if (size > limit_ - reserved()) size = heap.SegmentSize(bytes, /*least=*/true);
  if (size > limit_ - reserved()) return Growth::kLimit;
  std::byte* base = MapMemory(size, numa_node_, device_);
  if (base == nullptr) return Growth::kHostRefused;
  if (!heap.AddSegment(base, size)) {
    UnmapMemory(base, size);
    return Growth::kHostRefused;
  }
  Increase(stats_.segment, 1);
  Increase(stats_.reserved_bytes, size);
  return Growth::kGrown;
}

// ---------------------------------------------------------------- freeing

anvilError_t DeviceAllocator::Free(Block* block, bool hold_back, bool inside_command,
                                   bool* held_back) {
  std::shared_ptr<GraphPool> last;  // let go after the lock: its end comes back here
  std::lock_guard lock(mutex_);
  if (!block->in_use || block->held_back) {
    return Fail(ANVIL_ERROR_INVALID_VALUE, "anvilFree: this block has already been freed.");
  }
  block->NextGeneration();
  // Noted is the stream that the command allocated it for; another one still has to be waited for.
  if (inside_command && block->in_command && block->uses != nullptr &&
      block->uses->list.size() == 1) {
    delete std::exchange(block->uses, nullptr);
  }
  block->held_back = hold_back || block->uses != nullptr;
  *held_back = block->held_back;
  block->freed_at = clock_;
  if (!block->held_back) Return(block, &last);
  return ANVIL_SUCCESS;
}

void DeviceAllocator::Return(Block* block, bool used_since) {
  std::shared_ptr<GraphPool> last;
  std::lock_guard lock(mutex_);
  if (used_since) block->freed_at = clock_;
  Return(block, &last);
}

void DeviceAllocator::Return(Block* block, std::shared_ptr<GraphPool>* last) {
  Decrease(stats_.allocation, 1);
  Decrease(stats_.allocated_bytes, block->size);
  Decrease(stats_.requested_bytes, block->requested);
  block->held_back = false;
  block->in_command = false;
  if (block->heap != nullptr) return block->heap->Free(block, block->freed_at);
  Arena& arena = *block->arena;
  graph_allocated_ -= block->size;
  arena.Free(block);
  if (arena.allocated_bytes() == 0) *last = std::move(arena.keeper);
}

anvilError_t DeviceAllocator::RecordUse(Block* block, StreamUses::Use use, bool* noted) {
  std::lock_guard lock(mutex_);
  if (!block->in_use || block->held_back) {
    return Fail(ANVIL_ERROR_INVALID_VALUE,
                "anvilBlockRecordStream: this block has already been freed.");
  }
  const bool own = block->heap != nullptr && block->heap->stream() == use.stream;
  if (own && use.device == device_) return ANVIL_SUCCESS;
  if (block->uses == nullptr) block->uses = new StreamUses(block);
  if (!block->uses->Contains(use)) block->uses->list.push_back(use);
  *noted = true;
  return ANVIL_SUCCESS;
}

uint64_t DeviceAllocator::StreamOf(Block* block) {
  std::lock_guard lock(mutex_);
  return block->heap == nullptr ? kImmediate : block->heap->stream();
}

void DeviceAllocator::ReleaseIdle(Lock& lock, StreamOrder& streams) {
  // Commands use memory that was freed in stream order behind them. What was freed before the clock
  // advances is out of use once everything submitted so far has run.
  const uint64_t before = ++clock_;
  lock.unlock();
  std::vector<StreamOrder::Stream> left;
  if (!streams.WaitIdle()) left = streams.Streams();
  std::erase_if(left, [](const StreamOrder::Stream& stream) { return !stream.busy; });
  lock.lock();
  std::vector<Heap::Segment> segments;
  for (const auto& heaps : heaps_) {
    segments.clear();
    for (const auto& heap : heaps) {
      const bool busy = std::any_of(
          left.begin(), left.end(),
          [&](const StreamOrder::Stream& stream) { return stream.id == heap->stream(); });
      if (busy) continue;
      heap->TakeIdleSegments(heap->stream() == kImmediate ? UINT64_MAX : before, &segments);
    }
    if (segments.empty()) continue;
    Suspended* suspended = FindSuspended(heaps.front()->tag());
    for (const Heap::Segment& segment : segments) {
      UnmapMemory(segment.base, segment.size);
      Decrease(stats_.segment, 1);
      if (suspended == nullptr) Decrease(stats_.reserved_bytes, segment.size);
    }
    if (suspended != nullptr) ForgetSuspended(*suspended, segments);
  }
  if (left.empty()) ReleaseRetired(before);
}

void DeviceAllocator::EmptyCache(StreamOrder& streams) {
  Lock lock(mutex_);
  ReleaseIdle(lock, streams);
}

// ---------------------------------------------------------------- arenas

std::unique_ptr<Arena> DeviceAllocator::NewArena(GraphPool* pool) {
  auto arena = std::make_unique<Arena>(&records_, this, pool, limit_, numa_node_, device_);
  std::lock_guard lock(mutex_);
  retired_.reserve(arenas_ + 1);  // so that ending an arena cannot fail
  ++arenas_;
  return arena;
}

anvilError_t DeviceAllocator::Allocate(Arena& arena, size_t bytes,
                                       const std::shared_ptr<GraphPool>& keeper,
                                       StreamOrder& streams, Block** block) {
  Lock lock(mutex_);
  Growth growth = Growth::kGrown;
  Block* found = arena.Allocate(bytes);
  if (found == nullptr) {
    growth = Grow(arena, bytes);
    if (growth != Growth::kGrown && arena.GrowthFor(bytes) <= limit_) {
      ++stats_.num_alloc_retries;
      ReleaseIdle(lock, streams);
      growth = Grow(arena, bytes);
    }
    if (growth == Growth::kGrown) {
      found = arena.Allocate(bytes);
      if (found == nullptr) growth = Growth::kHostRefused;  // no memory for a record
    }
  }
  if (found == nullptr) return FailOutOfMemory(bytes, growth, &arena);
  Count(found, bytes);
  graph_allocated_ += found->size;
  if (arena.keeper == nullptr) arena.keeper = keeper;
  *block = found;
  return ANVIL_SUCCESS;
}

DeviceAllocator::Growth DeviceAllocator::Grow(Arena& arena, size_t bytes) {
  const size_t growth = arena.GrowthFor(bytes);
  if (growth > limit_ - reserved()) return Growth::kLimit;
  const bool first = arena.reserved_bytes() == 0;
  if (!arena.Grow(bytes)) return Growth::kHostRefused;
  if (first) Increase(stats_.segment, 1);
  Increase(stats_.reserved_bytes, growth);
  graph_reserved_ += growth;
  return Growth::kGrown;
}

void DeviceAllocator::Retire(std::unique_ptr<Arena> arena, StreamOrder& streams) {
  Lock lock(mutex_);
  retired_.push_back({std::move(arena), clock_});
  const uint64_t before = ++clock_;
  lock.unlock();
  for (const StreamOrder::Stream& stream : streams.Streams()) {
    // Left for the next time that memory is released. This one may be part of a command's end,
    // which must not wait.
    if (stream.busy) return;
  }
  lock.lock();
  ReleaseRetired(before);
}

void DeviceAllocator::ReleaseRetired(uint64_t before) {
  std::erase_if(retired_, [&](RetiredArena& retired) {
    if (retired.retired_at >= before) return false;
    const size_t bytes = retired.arena->reserved_bytes();
    if (bytes > 0) Decrease(stats_.segment, 1);
    Decrease(stats_.reserved_bytes, bytes);
    graph_reserved_ -= bytes;
    retired.arena.reset();
    --arenas_;
    return true;
  });
}

}  // namespace anvil
