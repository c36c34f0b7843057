// SPDX-License-Identifier: Apache-2.0
// When commands ran: spans, taken while someone wants them. See anvilTraceStart.
#pragma once

#include <atomic>
#include <cstdint>

namespace anvil {

// Around one run of a command, on the thread that runs it. Costs one load while nothing is traced.
class TracedRun {
 public:
  // `name` must outlive the object.
  explicit TracedRun(const char* name) {
    if (tracing.load(std::memory_order_relaxed)) Begin(name);
  }
  ~TracedRun() {
    if (begin_ != 0) End();
  }
  TracedRun(const TracedRun&) = delete;
  TracedRun& operator=(const TracedRun&) = delete;

  static std::atomic<bool> tracing;

 private:
  void Begin(const char* name);
  void End();

  const char* name_;
  uint64_t begin_ = 0;  // 0: not traced
};

}  // namespace anvil
