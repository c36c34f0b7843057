// SPDX-License-Identifier: Apache-2.0
#include "pinned_guard.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace anvil::sanitizer {
namespace {

bool Overlap(PinnedGuard::Range a, PinnedGuard::Range b) {
  return a.begin < b.end && b.begin < a.end;
}

uint64_t ChecksumOf(PinnedGuard::Range range) {
  return Checksum(reinterpret_cast<const void*>(range.begin), range.end - range.begin);
}

}  // namespace

// Four lanes, so that it runs as fast as memory: each step is a bijection of the lane for a given
// word and of the word for a given lane, so that one changed word always changes the result.
uint64_t Checksum(const void* bytes, size_t count) {
  constexpr uint64_t kPrime = 0x9E3779B185EBCA87u;  // odd
  uint64_t lanes[4] = {kPrime, kPrime << 1, kPrime << 2, count};
  const auto mix = [](uint64_t lane, uint64_t word) {
    return std::rotl(lane ^ word * kPrime, 31) * kPrime;
  };
  const auto* at = static_cast<const unsigned char*>(bytes);
  for (; count >= 32; at += 32, count -= 32) {
    uint64_t words[4];
    std::memcpy(words, at, sizeof words);
    for (int i = 0; i < 4; ++i) lanes[i] = mix(lanes[i], words[i]);
  }
  for (; count > 0;) {
    uint64_t word = 0;
    const size_t part = std::min<size_t>(count, sizeof word);
    std::memcpy(&word, at, part);
    lanes[3] = mix(lanes[3], word);
    at += part;
    count -= part;
  }
  uint64_t result = 0;
  for (uint64_t lane : lanes) result = mix(result, lane);
  return result ^ result >> 32;
}

bool PinnedGuard::WritePending(Range range) const {
  return std::any_of(commands_.begin(), commands_.end(), [range](const auto& entry) {
    const std::vector<Range>& writes = entry.second.writes;
    return std::any_of(writes.begin(), writes.end(),
                       [range](Range write) { return Overlap(write, range); });
  });
}

void PinnedGuard::Submitted(uint64_t ticket, const Use& use, const std::vector<Range>& reads,
                            const std::vector<Range>& writes) {
  if (reads.empty() && writes.empty()) return;
  Command command{use, {}, writes};
  for (const Range range : reads) {
    Read read{range};
    // First the pages: what is written from here on is seen.
    pages_.Protect(range.begin, range.end);
    // What the device itself is still to write there, the command finds changed, and rightly so.
    read.checked = !WritePending(range);
    if (read.checked) read.checksum = ChecksumOf(range);
    command.reads.push_back(read);
  }
  commands_.emplace(ticket, std::move(command));
}

void PinnedGuard::Starting(uint64_t ticket, Changes* changes) {
  const auto found = commands_.find(ticket);
  if (found == commands_.end()) return;
  Collect(changes);
  Command& command = found->second;
  for (Read& read : command.reads) {
    if (!read.checked || read.reported || ChecksumOf(read.range) == read.checksum) continue;
    read.reported = true;
    changes->push_back({read.range, command.use, false, ""});
  }
  // Its own writes are no business of the guard's.
  for (const Range write : command.writes) pages_.Open(write.begin, write.end);
}

void PinnedGuard::Finished(uint64_t ticket, Changes* changes) {
  const auto found = commands_.find(ticket);
  if (found == commands_.end()) return;
  Collect(changes);
  const Command command = std::move(found->second);
  commands_.erase(found);
  for (const Read& read : command.reads) pages_.Release(read.range.begin, read.range.end);
  if (command.writes.empty()) return;
  // What it wrote is what commands that are still queued are to find.
  for (auto& [other, queued] : commands_) {
    for (Read& read : queued.reads) {
      const bool written = std::any_of(command.writes.begin(), command.writes.end(),
                                       [&read](Range write) { return Overlap(write, read.range); });
      if (!written) continue;
      read.checked = !WritePending(read.range);
      if (read.checked) read.checksum = ChecksumOf(read.range);
    }
  }
}

void PinnedGuard::Freed(Range range) {
  const auto overlaps = [range](Range other) { return Overlap(range, other); };
  for (auto& [ticket, command] : commands_) {
    std::erase_if(command.reads, [&](const Read& read) {
      if (!overlaps(read.range)) return false;
      pages_.Release(read.range.begin, read.range.end);
      return true;
    });
    std::erase_if(command.writes, overlaps);
  }
  pages_.Forget(range.begin, range.end);
}

void PinnedGuard::Collect(Changes* changes) {
  for (const PinnedPages::Fault& fault : pages_.TakeFaults()) {
    const Range byte{fault.address, fault.address + 1};
    // The device's own write, of a command that was running when the page became read-only.
    if (WritePending(byte)) continue;
    for (auto& [ticket, command] : commands_) {
      for (Read& read : command.reads) {
        if (read.reported || !Overlap(byte, read.range)) continue;
        read.reported = true;
        changes->push_back({byte, command.use, true, fault.where});
      }
    }
  }
}

}  // namespace anvil::sanitizer
