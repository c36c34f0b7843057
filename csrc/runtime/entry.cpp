// SPDX-License-Identifier: Apache-2.0
#include "entry.h"

#include <atomic>
#include <utility>

namespace anvil {
namespace {

constexpr size_t kMostKept = 16384;

// Entries that executors are done with. Taken as a whole only, so that a plain stack will do.
std::atomic<Entry*> returned{nullptr};
std::atomic<size_t> returned_count{0};  // about: a bound, not a tally

// The entries that a thread has taken and not used yet. Plain data, so that entries can be had
// during static destruction as well, when the thread's other objects are gone.
thread_local constinit Entry* own = nullptr;
thread_local constinit bool thread_ends = false;

void DeleteChain(Entry* chain) {
  while (chain != nullptr) delete std::exchange(chain, chain->next);
}

struct AtThreadEnd {
  bool armed = false;
  ~AtThreadEnd() {
    thread_ends = true;
    DeleteChain(std::exchange(own, nullptr));
  }
};
thread_local AtThreadEnd at_thread_end;

}  // namespace

Entry* TakeEntry() {
  if (own == nullptr) {
    if (thread_ends) return new Entry{};
    at_thread_end.armed = true;  // from its first use on, it is destroyed with the thread
    own = returned.exchange(nullptr, std::memory_order_acquire);
    returned_count.store(0, std::memory_order_relaxed);
    if (own == nullptr) return new Entry{};
  }
  Entry* entry = own;
  own = entry->next;
  // The next one lies in the executor's cache: fetched meanwhile, it does not hold up the caller.
  if (own != nullptr) __builtin_prefetch(own, 1);
  return entry;
}

void ReturnEntries(Entry* chain, Entry* last, size_t count) {
  if (returned_count.fetch_add(count, std::memory_order_relaxed) > kMostKept) {
    returned_count.fetch_sub(count, std::memory_order_relaxed);
    last->next = nullptr;
    DeleteChain(chain);
    return;
  }
  last->next = returned.load(std::memory_order_relaxed);
  while (!returned.compare_exchange_weak(last->next, chain, std::memory_order_release,
                                         std::memory_order_relaxed)) {
  }
}

}  // namespace anvil
