// SPDX-License-Identifier: Apache-2.0
// Pages of pinned memory that are read-only while a queued command is going to read them. A write
// is let through, and remembered together with the place it came from.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "anvil/runtime.h"

namespace anvil::sanitizer {

class PinnedPages {
 public:
  struct Fault {
    uintptr_t address;
    char where[200];  // the writer's call site
  };

  // The one of this process: signal handlers belong to processes.
  static PinnedPages& Get();

  // Counts one more, or one less, reason why the pages around [begin, end) are read-only.
  void Protect(uintptr_t begin, uintptr_t end);
  void Release(uintptr_t begin, uintptr_t end);
  // Makes the pages writable, whatever the reasons, until the next Protect.
  void Open(uintptr_t begin, uintptr_t end);
  // Open, and all reasons are gone: the memory is given back.
  void Forget(uintptr_t begin, uintptr_t end);

  std::vector<Fault> TakeFaults();

  void SetCallSite(anvilSignalSafeCallSiteFn function) { call_site_.store(function); }

  // In the signal handler; false: not our page.
  bool HandleFault(uintptr_t address);

 private:
  struct Page {
    uint32_t reasons = 0;
    bool read_only = false;
  };

  // Held by the signal handler too, hence no mutex. Whoever holds it touches the records only,
  // which are not pinned memory: no fault while it is held, so that no thread waits for itself.
  class Lock;

  // A handler that was installed over ours and does not know of our pages would end the process.
  bool OwnsSignal();
  template <typename Change>
  void SetAccess(uintptr_t begin, uintptr_t end, bool read_only, Change&& change);

  std::atomic_flag locked_ = ATOMIC_FLAG_INIT;
  // Every page that was ever read-only, until it is forgotten: a write that was stopped just before
  // its page was released must still be told from a crash.
  std::unordered_map<uintptr_t, Page> pages_;
  std::array<Fault, 64> faults_;  // more than that before anybody looks are lost
  std::atomic<size_t> fault_count_{0};
  std::atomic<anvilSignalSafeCallSiteFn> call_site_{nullptr};
};

}  // namespace anvil::sanitizer
