// SPDX-License-Identifier: Apache-2.0
// Who used which memory last, and what in that contradicts the order of the streams. Knows nothing
// of threads, locks and the runtime: the order comes in as clocks, memory as numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "interval_map.h"
#include "vector_clock.h"

namespace anvil::sanitizer {

inline constexpr uint32_t kHost = UINT32_MAX;  // in place of a stream

// Something that was done to memory. The texts outlive all uses.
struct Use {
  Epoch epoch{kHost, 0};
  const std::string* what = nullptr;   // the command's name; null: nothing was done
  const std::string* where = nullptr;  // the call site

  bool operator==(const Use&) const = default;
};

// An allocation from its beginning to the next one in the same place.
struct Life {
  const void* block = nullptr;
  uint64_t generation = 0;
  uintptr_t begin = 0, end = 0;
  Use allocated;
  Use freed;         // set already while the free waits for other streams
  Use freed_before;  // the free that made room for this allocation
  bool live = true;  // not yet returned to the pool
  // What is submitted to these before the free is waited for before the memory is used again: the
  // one in whose order the block lives, and those it was recorded for.
  std::vector<uint32_t> streams;
};

struct Access {
  const void* block = nullptr;  // null: unknown, or not the device's
  uint64_t generation = 0;
  uintptr_t begin = 0, end = 0;
  bool writes = false;
  bool pinned = false;  // host memory
};

struct Finding {
  enum class Kind { kRace, kUseBeforeAllocation, kUseAfterFree, kFreedInUse };

  Kind kind;
  uintptr_t begin, end;              // the bytes in question
  std::shared_ptr<const Life> life;  // null: no device memory
  Use use;                           // what the report is about
  bool writes;
  Use earlier;  // what contradicts it
  bool earlier_writes;
  bool pinned;
};

using Findings = std::vector<Finding>;

class AccessHistory {
 public:
  // `use` touches memory and has `behind` behind it, itself included.
  void Touch(const Access& access, const Use& use, const VectorClock& behind, Findings* findings);

  void Allocate(const void* block, uint64_t generation, uintptr_t begin, uintptr_t end,
                const Use& use);
  // The block's free will wait for what is submitted to `stream` before it.
  void Record(const void* block, uint32_t stream);
  // The block has been freed, but has to wait for other streams before it returns to its pool.
  void DeferFree(const void* block, const Use& use);
  // `behind`: what is ordered before the memory's next use. Null block: pinned memory. Returns the
  // life that has ended, if it was known.
  std::shared_ptr<const Life> Free(const void* block, uintptr_t begin, uintptr_t end,
                                   const Use& use, const VectorClock& behind, Findings* findings);

  // The live block, or null.
  const Life* Find(const void* block) const;

 private:
  struct Cell {
    std::shared_ptr<Life> life;  // null: memory of which no allocation is known
    Use write;                   // the last one
    std::vector<Use> reads;      // since then; none that another one is behind

    bool operator==(const Cell&) const = default;
  };

  IntervalMap<Cell> cells_;
  std::unordered_map<const void*, std::shared_ptr<Life>> live_;  // by block
};

}  // namespace anvil::sanitizer
