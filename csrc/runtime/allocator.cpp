// SPDX-License-Identifier: Apache-2.0
#include "allocator.h"

#include <cerrno>
#include <cstring>

#include "error.h"
#include "memory_source.h"
#include "memory_tag.h"
#include "units.h"

namespace anvil {

Heap& DeviceAllocator::HeapOf(int tag) {
  const size_t index = static_cast<size_t>(tag);
  if (index >= heaps_.size()) heaps_.resize(index + 1);
  if (heaps_[index] == nullptr) heaps_[index] = std::make_unique<Heap>(&records_, this, tag);
  return *heaps_[index];
}

anvilError_t DeviceAllocator::Allocate(size_t bytes, int tag, Block** block, bool* dirty) {
  std::lock_guard lock(mutex_);
  Heap& heap = HeapOf(tag);
  // Nothing to gain from the cache when the request alone is over the limit.
  Growth growth = bytes > limit_ ? Growth::kLimit : Growth::kGrown;
  Block* found = growth == Growth::kGrown ? heap.Allocate(bytes) : nullptr;
  if (found == nullptr && growth == Growth::kGrown) found = AllocateSlowly(heap, bytes, &growth);
  if (found == nullptr) {
    ++stats_.num_ooms;
    return FailOutOfMemory(bytes, growth);
  }
  Increase(stats_.allocation, 1);
  Increase(stats_.allocated_bytes, found->size);
  Increase(stats_.requested_bytes, bytes);
  *block = found;
  *dirty = found->dirty;
  return ANVIL_SUCCESS;
}

Block* DeviceAllocator::AllocateSlowly(Heap& heap, size_t bytes, Growth* growth) {
  *growth = Grow(heap, bytes);
  if (*growth != Growth::kGrown) {
    ++stats_.num_alloc_retries;
    ReleaseIdleSegments();
    *growth = Grow(heap, bytes);
    if (*growth != Growth::kGrown) return nullptr;
  }
  Block* block = heap.Allocate(bytes);
  if (block == nullptr) *growth = Growth::kHostRefused;  // no memory for a record
  return block;
}

DeviceAllocator::Growth DeviceAllocator::Grow(Heap& heap, size_t bytes) {
  if (heap.records_exhausted()) return Growth::kHostRefused;
  const size_t reserved = static_cast<size_t>(stats_.reserved_bytes.current);
  size_t size = heap.SegmentSize(bytes, /*least=*/false);
  if (size > limit_ - reserved) size = heap.SegmentSize(bytes, /*least=*/true);
  if (size > limit_ - reserved) return Growth::kLimit;
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

anvilError_t DeviceAllocator::Free(Block* block) {
  std::lock_guard lock(mutex_);
  if (!block->in_use) {
    return Fail(ANVIL_ERROR_INVALID_VALUE, "anvilFree: this block has already been freed.");
  }
  Decrease(stats_.allocation, 1);
  Decrease(stats_.allocated_bytes, block->size);
  Decrease(stats_.requested_bytes, block->requested);
  block->heap->Free(block);
  return ANVIL_SUCCESS;
}

void DeviceAllocator::ReleaseIdleSegments() {
  std::vector<Heap::Segment> segments;
  for (const auto& heap : heaps_) {
    if (heap != nullptr) heap->TakeIdleSegments(&segments);
  }
  for (const Heap::Segment& segment : segments) {
    UnmapMemory(segment.base, segment.size);
    Decrease(stats_.segment, 1);
    Decrease(stats_.reserved_bytes, segment.size);
  }
}

void DeviceAllocator::EmptyCache() {
  std::lock_guard lock(mutex_);
  ReleaseIdleSegments();
}

DeviceAllocator::Usage DeviceAllocator::GetUsage() {
  std::lock_guard lock(mutex_);
  Usage usage{static_cast<size_t>(stats_.reserved_bytes.current), 0};
  for (const auto& heap : heaps_) {
    if (heap != nullptr) usage.idle += heap->idle_bytes();
  }
  return usage;
}

anvilMemoryStats DeviceAllocator::GetStats() {
  std::lock_guard lock(mutex_);
  return stats_;
}

void DeviceAllocator::ResetPeakStats() {
  std::lock_guard lock(mutex_);
  for (anvilStat* stat : {&stats_.allocation, &stats_.segment, &stats_.allocated_bytes,
                          &stats_.requested_bytes, &stats_.reserved_bytes}) {
    ResetPeak(*stat);
  }
}

void DeviceAllocator::ResetAccumulatedStats() {
  std::lock_guard lock(mutex_);
  for (anvilStat* stat : {&stats_.allocation, &stats_.segment, &stats_.allocated_bytes,
                          &stats_.requested_bytes, &stats_.reserved_bytes}) {
    ResetAccumulated(*stat);
  }
  stats_.num_alloc_retries = stats_.num_ooms = 0;
}

std::vector<anvilTagStats> DeviceAllocator::GetTagStats() {
  std::lock_guard lock(mutex_);
  std::vector<anvilTagStats> tags;
  for (const auto& heap : heaps_) {
    if (heap == nullptr) continue;
    anvilTagStats& entry = tags.emplace_back();
    std::strncpy(entry.tag, TagName(heap->tag()), sizeof(entry.tag) - 1);
    entry.allocated_bytes = heap->allocated_bytes();
    entry.reserved_bytes = heap->reserved_bytes();
  }
  return tags;
}

anvilError_t DeviceAllocator::FailOutOfMemory(size_t bytes, Growth reason) {
  const int error = errno;
  const size_t reserved = static_cast<size_t>(stats_.reserved_bytes.current);
  const size_t allocated = static_cast<size_t>(stats_.allocated_bytes.current);
  std::string words = "Out of memory on anvil:" + std::to_string(device_) + ": " +
                      FormatBytes(bytes) + " asked for";
  words += reason == Growth::kHostRefused
               ? ", and the host refused to map it (" + std::string(std::strerror(error)) + ")"
               : ", which does not fit the limit";
  words += ". Limit " + FormatBytes(limit_) + ", held " + FormatBytes(allocated);
  const char* separator = " (";
  for (const auto& heap : heaps_) {
    if (heap == nullptr || heap->allocated_bytes() == 0) continue;
    words +=
        separator + std::string(TagName(heap->tag())) + " " + FormatBytes(heap->allocated_bytes());
    separator = ", ";
  }
  if (*separator == ',') words += ")";
  words += ", cached " + FormatBytes(reserved - allocated) + ". ";
  words += reason == Growth::kHostRefused
               ? "Free memory on the host, raise the process's limits (ulimit -v, cgroup, "
                 "vm.overcommit_memory), or ask for less"
               : "Raise ANVIL_DEVICE_MEMORY if the host has more to give, or ask for less";
  words += ": lower gpu_memory_utilization, max_model_len, max_num_seqs or max_num_batched_tokens.";
  return Fail(ANVIL_ERROR_OUT_OF_MEMORY, words);
}

}  // namespace anvil
