// SPDX-License-Identifier: Apache-2.0
// Memory that is given back for a while, without its blocks: what holds their addresses, captured
// graphs for one, goes on as before once they have memory again.
#include <cerrno>
#include <cstring>

#include "allocator.h"
#include "available_memory.h"
#include "error.h"
#include "memory_source.h"
#include "units.h"

namespace anvil {

size_t DeviceAllocator::Suspended::bytes() const {
  size_t sum = 0;
  for (const OffloadFile::Range& range : ranges) sum += range.size;
  return sum;
}

DeviceAllocator::Suspended* DeviceAllocator::FindSuspended(int tag) {
  for (Suspended& one : suspended_) {
    if (one.tag == tag) return &one;
  }
  return nullptr;
}

bool DeviceAllocator::IsSuspended(const Block* block) {
  std::lock_guard lock(mutex_);
  return block->heap != nullptr && FindSuspended(block->heap->tag()) != nullptr;
}

anvilError_t DeviceAllocator::Suspend(int tag, const char* folder, StreamOrder& streams,
                                      size_t* bytes) {
  const std::string what =
      "The memory of anvil:" + std::to_string(device_) + " under the tag " + TagName(tag);
  if (!streams.WaitIdle()) {
    return Fail(ANVIL_ERROR_INVALID_VALUE,
                what + " cannot be suspended by a command of the device itself.");
  }
  Lock lock(mutex_);
  ReleaseIdle(lock, streams);
  if (FindSuspended(tag) != nullptr) {
    return Fail(ANVIL_ERROR_INVALID_VALUE, what + " is suspended already.");
  }
  Suspended suspended{tag, {}, nullptr};
  size_t offset = 0;
  if (static_cast<size_t>(tag) < heaps_.size()) {
    for (const auto& heap : heaps_[static_cast<size_t>(tag)]) {
      for (const Heap::Segment& segment : heap->segments()) {
        suspended.ranges.push_back({segment.base, segment.size, offset});
        offset += segment.size;
      }
    }
  }
  if (folder != nullptr && offset > 0) {
    auto file = OffloadFile::Create(folder, offset);
    std::string failure = file.error;
    if (file.ok()) failure = file.value->Write(suspended.ranges);
    if (!failure.empty()) {
      return Fail(ANVIL_ERROR_SYSTEM, what + " (" + FormatBytes(offset) +
                                          ") cannot be written to disk: " + failure + ".");
    }
    suspended.file = std::move(file.value);
  }
  suspended_.push_back(std::move(suspended));
  for (const OffloadFile::Range& range : suspended_.back().ranges) {
    // A range that the host keeps is only not given back.
    DropMemory(range.base, range.size);
  }
  Decrease(stats_.reserved_bytes, offset);
  *bytes = offset;
  return ANVIL_SUCCESS;
}

anvilError_t DeviceAllocator::Resume(int tag, StreamOrder& streams, int threads, size_t* bytes) {
  const std::string what =
      "The memory of anvil:" + std::to_string(device_) + " under the tag " + TagName(tag);
  Lock lock(mutex_);
  Suspended* found = FindSuspended(tag);
  if (found != nullptr && found->bytes() > limit_ - reserved()) {
    ReleaseIdle(lock, streams);
    found = FindSuspended(tag);
  }
  if (found == nullptr) return Fail(ANVIL_ERROR_INVALID_VALUE, what + " is not suspended.");
  const size_t needed = found->bytes();
  if (needed > limit_ - reserved()) return FailOutOfMemory(needed, Growth::kLimit, nullptr);
  const uint64_t available = AvailableHostMemory();
  if (needed > available) {
    ++stats_.num_ooms;
    return Fail(ANVIL_ERROR_OUT_OF_MEMORY,
                what + " cannot be resumed: it needs " + FormatBytes(needed) +
                    ", and the host has " + FormatBytes(available) +
                    " available. Free memory on the host and resume it again.");
  }
  std::string failure;
  for (const OffloadFile::Range& range : found->ranges) {
    if (RestoreMemory(range.base, range.size)) continue;
    failure = std::strerror(errno);
    break;
  }
  if (failure.empty() && found->file != nullptr) {
    failure = found->file->Read(found->ranges, threads);
  }
  if (!failure.empty()) {
    for (const OffloadFile::Range& range : found->ranges) DropMemory(range.base, range.size);
    return Fail(ANVIL_ERROR_SYSTEM, what + " cannot be resumed: " + failure + ".");
  }
  Increase(stats_.reserved_bytes, needed);
  *bytes = needed;
  suspended_.erase(suspended_.begin() + (found - suspended_.data()));
  return ANVIL_SUCCESS;
}

// Of segments that are gone for good, since all their blocks were freed meanwhile.
void DeviceAllocator::ForgetSuspended(Suspended& suspended,
                                      const std::vector<Heap::Segment>& released) {
  std::erase_if(suspended.ranges, [&](const OffloadFile::Range& range) {
    return std::any_of(released.begin(), released.end(),
                       [&](const Heap::Segment& segment) { return segment.base == range.base; });
  });
  if (suspended.ranges.empty())
    suspended_.erase(suspended_.begin() + (&suspended - suspended_.data()));
}

}  // namespace anvil
