// SPDX-License-Identifier: Apache-2.0
// What a device's allocator tells about itself.
#include <cerrno>
#include <cstring>

#include "allocator.h"
#include "error.h"
#include "units.h"

namespace anvil {
namespace {

template <typename Change>
void ForEachStat(anvilMemoryStats& stats, Change&& change) {
  for (anvilStat* stat : {&stats.allocation, &stats.segment, &stats.allocated_bytes,
                          &stats.requested_bytes, &stats.reserved_bytes}) {
    change(*stat);
  }
}

}  // namespace

DeviceAllocator::Usage DeviceAllocator::GetUsage() {
  std::lock_guard lock(mutex_);
  Usage usage{reserved(), 0};
  for (const auto& heaps : heaps_) {
    if (heaps.empty() || FindSuspended(heaps.front()->tag()) != nullptr) continue;
    for (const auto& heap : heaps) usage.idle += heap->idle_bytes();
  }
  for (const RetiredArena& retired : retired_) usage.idle += retired.arena->reserved_bytes();
  return usage;
}

DeviceAllocator::Usage DeviceAllocator::GetUsage(const Arena& arena) {
  std::lock_guard lock(mutex_);
  return {arena.reserved_bytes(), arena.reserved_bytes() - arena.allocated_bytes()};
}

anvilMemoryStats DeviceAllocator::GetStats() {
  std::lock_guard lock(mutex_);
  return stats_;
}

void DeviceAllocator::ResetPeakStats() {
  std::lock_guard lock(mutex_);
  ForEachStat(stats_, ResetPeak);
}

void DeviceAllocator::ResetAccumulatedStats() {
  std::lock_guard lock(mutex_);
  ForEachStat(stats_, ResetAccumulated);
  stats_.num_alloc_retries = stats_.num_ooms = 0;
}

std::vector<DeviceAllocator::TagUsage> DeviceAllocator::UsageByTag() {
  std::vector<TagUsage> tags;
  for (size_t tag = 0; tag < heaps_.size(); ++tag) {
    if (heaps_[tag].empty()) continue;
    TagUsage& entry = tags.emplace_back(TagUsage{static_cast<int>(tag), 0, 0, false});
    entry.suspended = FindSuspended(entry.tag) != nullptr;
    for (const auto& heap : heaps_[tag]) {
      entry.allocated += heap->allocated_bytes();
      if (!entry.suspended) entry.reserved += heap->reserved_bytes();
    }
  }
  if (arenas_ > 0) {
    // Arenas serve captures under any tag, and outlive them.
    const int graphs = InternTag(kGraphTag);
    auto entry = std::find_if(tags.begin(), tags.end(),
                              [&](const TagUsage& usage) { return usage.tag == graphs; });
    if (entry == tags.end()) entry = tags.insert(tags.end(), TagUsage{graphs, 0, 0, false});
    entry->allocated += graph_allocated_;
    entry->reserved += graph_reserved_;
  }
  return tags;
}

std::vector<anvilTagStats> DeviceAllocator::GetTagStats() {
  std::lock_guard lock(mutex_);
  std::vector<anvilTagStats> tags;
  for (const TagUsage& usage : UsageByTag()) {
    anvilTagStats& entry = tags.emplace_back();
    std::strncpy(entry.tag, TagName(usage.tag), sizeof(entry.tag) - 1);
    entry.allocated_bytes = usage.allocated;
    entry.reserved_bytes = usage.reserved;
  }
  return tags;
}

anvilError_t DeviceAllocator::FailOutOfMemory(size_t bytes, Growth reason, const Arena* arena) {
  const int error = errno;
  ++stats_.num_ooms;
  std::vector<TagUsage> tags = UsageByTag();
  size_t allocated = static_cast<size_t>(stats_.allocated_bytes.current);
  std::erase_if(tags, [&](const TagUsage& usage) {
    if (usage.suspended) allocated -= usage.allocated;  // holds nothing
    return usage.suspended || usage.allocated == 0;
  });
  // What graph pools hold beyond blocks is needed by their graphs' replays.
  size_t for_replays = graph_reserved_ - graph_allocated_;
  for (const RetiredArena& retired : retired_) for_replays -= retired.arena->reserved_bytes();
  std::string words = "Out of memory on anvil:" + std::to_string(device_) + ": " +
                      FormatBytes(bytes) + " asked for" +
                      (arena != nullptr ? " by a graph pool" : "");
  words += reason == Growth::kHostRefused
               ? ", and the host refused to map it (" + std::string(std::strerror(error)) + ")"
               : ", which does not fit the limit";
  words += ". Limit " + FormatBytes(limit_) + ", held " + FormatBytes(allocated);
  const char* separator = " (";
  for (const TagUsage& usage : tags) {
    words += separator + std::string(TagName(usage.tag)) + " " + FormatBytes(usage.allocated);
    separator = ", ";
  }
  if (*separator == ',') words += ")";
  words += ", cached " + FormatBytes(reserved() - allocated - for_replays);
  if (for_replays > 0) words += ", kept by graph pools for replays " + FormatBytes(for_replays);
  words += ". ";
  words += reason == Growth::kHostRefused
               ? "Free memory on the host, raise the process's limits (ulimit -v, cgroup, "
                 "vm.overcommit_memory), or ask for less"
               : "Raise ANVIL_DEVICE_MEMORY if the host has more to give, or ask for less";
  words += ": lower gpu_memory_utilization, max_model_len, max_num_seqs or max_num_batched_tokens";
  if (for_replays > 0) {
    words +=
        ", destroy graphs that are no longer replayed, or capture fewer or smaller ones "
        "(cudagraph_capture_sizes)";
  }
  return Fail(ANVIL_ERROR_OUT_OF_MEMORY, words + ".");
}

}  // namespace anvil
