// SPDX-License-Identifier: Apache-2.0
#include "access_history.h"

#include <algorithm>
#include <utility>

namespace anvil::sanitizer {

void AccessHistory::Touch(const Access& access, const Use& use, const VectorClock& behind,
                          Findings* findings) {
  using Kind = Finding::Kind;
  cells_.Update(access.begin, access.end, [&](uintptr_t begin, uintptr_t end, Cell& cell) {
    // Device memory that went back to the operating system and came again as host memory.
    if (access.pinned && cell.life != nullptr) cell = {};
    const auto find = [&](Kind kind, const Use& earlier, bool earlier_writes) {
      findings->push_back({kind, begin, end, cell.life, use, access.writes, earlier, earlier_writes,
                           access.pinned});
    };
    if (const Life* life = cell.life.get()) {
      const bool stale = access.block != nullptr &&
                         (access.block != life->block || access.generation != life->generation);
      // There is no order to check in memory that is another's, or nobody's.
      if (!life->live || stale) {
        const bool freed = life->freed.what != nullptr;
        return find(Kind::kUseAfterFree, freed ? life->freed : life->freed_before, false);
      }
      if (!behind.Covers(life->allocated.epoch)) {
        find(Kind::kUseBeforeAllocation, life->allocated, false);
      }
    }
    if (cell.write.what != nullptr && !behind.Covers(cell.write.epoch)) {
      find(Kind::kRace, cell.write, true);
    }
    if (access.writes) {
      for (const Use& read : cell.reads) {
        if (!behind.Covers(read.epoch)) find(Kind::kRace, read, false);
      }
      cell.write = use;
      cell.reads.clear();
    } else if (cell.write != use) {  // else: an update in place, of which the write says it all
      // Whatever is ordered behind this read is ordered behind those that it has behind it.
      std::erase_if(cell.reads, [&](const Use& read) { return behind.Covers(read.epoch); });
      cell.reads.push_back(use);
    }
  });
}

void AccessHistory::Allocate(const void* block, uint64_t generation, uintptr_t begin, uintptr_t end,
                             const Use& use) {
  const auto life = std::make_shared<Life>();
  life->block = block;
  life->generation = generation;
  life->begin = begin;
  life->end = end;
  life->allocated = use;
  if (use.epoch.stream != kHost) life->streams.push_back(use.epoch.stream);
  cells_.ForEach(begin, end, [&](uintptr_t, uintptr_t, const Cell& cell) {
    if (cell.life != nullptr) life->freed_before = cell.life->freed;
  });
  cells_.Assign(begin, end, {life, {}, {}});
  live_[block] = life;
}

void AccessHistory::Record(const void* block, uint32_t stream) {
  const auto found = live_.find(block);
  if (found == live_.end()) return;
  std::vector<uint32_t>& streams = found->second->streams;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

void AccessHistory::DeferFree(const void* block, const Use& use) {
  const auto found = live_.find(block);
  if (found != live_.end()) found->second->freed = use;
}

std::shared_ptr<const Life> AccessHistory::Free(const void* block, uintptr_t begin, uintptr_t end,
                                                const Use& use, const VectorClock& behind,
                                                Findings* findings) {
  const auto found = live_.find(block);
  const std::shared_ptr<Life> life = found == live_.end() ? nullptr : std::move(found->second);
  if (found != live_.end()) live_.erase(found);
  if (life != nullptr) {
    life->live = false;
    // The caller of a deferred free is where it was asked for.
    if (life->freed.what == nullptr) life->freed = use;
  }
  cells_.ForEach(begin, end, [&](uintptr_t from, uintptr_t to, const Cell& cell) {
    const auto check = [&](const Use& earlier, bool writes) {
      if (earlier.what == nullptr || behind.Covers(earlier.epoch)) return;
      findings->push_back({Finding::Kind::kFreedInUse, from, to, life,
                           life != nullptr ? life->freed : use, false, earlier, writes,
                           block == nullptr});
    };
    check(cell.write, true);
    for (const Use& read : cell.reads) check(read, false);
  });
  cells_.Assign(begin, end, {life, {}, {}});
  return life;
}

const Life* AccessHistory::Find(const void* block) const {
  const auto found = live_.find(block);
  return found == live_.end() ? nullptr : found->second.get();
}

}  // namespace anvil::sanitizer
