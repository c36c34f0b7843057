// SPDX-License-Identifier: Apache-2.0
// Watches pinned memory that queued commands are going to read. A change is noticed twice: by the
// fault of the write, which knows the writer, and by a checksum taken at the submission and again
// before the command runs, which sees what the fault cannot (system calls, later writes to a page).
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "access_history.h"
#include "pinned_pages.h"

namespace anvil::sanitizer {

uint64_t Checksum(const void* bytes, size_t count);

// Not safe by itself: its owner has a lock.
class PinnedGuard {
 public:
  struct Range {
    uintptr_t begin, end;
  };
  struct Change {
    Range range;        // the bytes that changed, as far as that is known
    Use reader;         // the command that was to read them
    bool seen;          // whether the write itself was seen
    std::string where;  // then: where it came from
  };
  using Changes = std::vector<Change>;

  // The command `ticket`, done by `use`, is going to be queued: it reads and writes these ranges.
  void Submitted(uint64_t ticket, const Use& use, const std::vector<Range>& reads,
                 const std::vector<Range>& writes);
  void Starting(uint64_t ticket, Changes* changes);
  void Finished(uint64_t ticket, Changes* changes);
  // The memory is given back; whether anyone still uses it is not asked here.
  void Freed(Range range);
  // Reports writes that were seen since the last call.
  void Collect(Changes* changes);

 private:
  struct Read {
    Range range;
    uint64_t checksum = 0;
    bool checked = false;   // the checksum is that of what the command is to find
    bool reported = false;  // once is enough
  };
  struct Command {
    Use use;
    std::vector<Read> reads;
    std::vector<Range> writes;
  };

  bool WritePending(Range range) const;

  PinnedPages& pages_ = PinnedPages::Get();
  std::unordered_map<uint64_t, Command> commands_;  // queued or running, by ticket
};

}  // namespace anvil::sanitizer
