// SPDX-License-Identifier: Apache-2.0
// What stands in a stream's queue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "anvil/runtime.h"
#include "completion.h"

namespace anvil {

// On cache lines of its own: written by the submitter, read by the executor. A command uses the
// first line only.
struct alignas(64) Entry {
  enum class Kind : uint32_t {
    kCommand,
    kInternalCommand,  // the runtime's own, which keeps its stream alive
    kRecord,           // passes `completion`
    kWait,             // holds the stream up until `completion` is passed
    kClose,            // ends a destroyed stream, which lives until then
    kPoke,             // nothing: wakes the executor
  };

  Entry* next;
  anvilStream_t stream;
  uint64_t ticket;
  Kind kind;
  const char* name;
  anvilError_t (*run)(void* arg);
  void (*destroy)(void* arg);
  void* arg;

  std::shared_ptr<Completion> completion;
  std::shared_ptr<anvilStream_st> keeps;  // until the entry has run
};

// A used entry or a new one, with neither completion nor stream kept alive.
Entry* TakeEntry();
// Entries are kept for further use, up to a bound. `chain`: linked through next.
void ReturnEntries(Entry* chain, Entry* last, size_t count);

// First in, first out.
class EntryQueue {
 public:
  Entry* first() const { return first_; }
  void Push(Entry* entry) {
    entry->next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = entry;
    last_ = entry;
  }
  Entry* Pop() {
    Entry* entry = first_;
    first_ = entry->next;
    return entry;
  }

 private:
  Entry* first_ = nullptr;
  Entry* last_ = nullptr;
};

}  // namespace anvil
