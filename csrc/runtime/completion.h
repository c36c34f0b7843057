// SPDX-License-Identifier: Apache-2.0
// A point in a stream, passed once: what events are recorded as and what waiters sleep on.
#pragma once

#include <atomic>
#include <cstdint>

#include "futex.h"
#include "sanitizer.h"

namespace anvil {

struct Device;

class Completion {
 public:
  // What a wait may cost in time before it costs the executor a system call. Short: the cores that
  // waiters spin on are those that commands run on.
  static constexpr auto kSpinTime = std::chrono::microseconds(10);

  // `device`: the one on whose stream the point lies.
  explicit Completion(const Device* device) : device(device) {}
  ~Completion() { sanitizer::Release(clock); }
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  const Device* const device;
  sanitizer::Clock* clock = nullptr;  // of an event record

  bool done() const {
    uint32_t state = state_.load(std::memory_order_acquire);
    // About to be done: neither answer would agree with what the stream says.
    for (; (state & (kFinishing | kDone)) == kFinishing; Pause()) {
      state = state_.load(std::memory_order_acquire);
    }
    return (state & kDone) != 0;
  }
  int64_t nanoseconds() const { return nanoseconds_; }  // steady clock; once done

  // Passes the point. `count` tells the stream so; stream and completion agree for whoever looks at
  // both, in either order. Returns whether an executor has asked to be told (Watch).
  template <typename Count>
  bool Finish(Count&& count) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    nanoseconds_ = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    state_.fetch_or(kFinishing, std::memory_order_release);
    count();
    const uint32_t before = state_.fetch_or(kDone, std::memory_order_acq_rel);
    if ((before & kSleepers) != 0) FutexWakeAll(state_);
    return (before & kWatched) != 0;
  }

  // Waits awake for a moment, then asleep.
  void Wait() {
    if (SpinUntil(kSpinTime, [this] { return done(); })) return;
    for (;;) {
      const uint32_t state = state_.fetch_or(kSleepers, std::memory_order_acq_rel) | kSleepers;
      if ((state & kDone) != 0) return;
      FutexWait(state_, state);
    }
  }

  // Whether the point has been passed; if not, Finish will say that it is watched.
  bool Watch() {
    uint32_t state = state_.load(std::memory_order_acquire);
    if ((state & kWatched) == 0) state = state_.fetch_or(kWatched, std::memory_order_acq_rel);
    return (state & kDone) != 0;
  }

 private:
  static constexpr uint32_t kFinishing = 1;
  static constexpr uint32_t kDone = 2;
  static constexpr uint32_t kSleepers = 4;
  static constexpr uint32_t kWatched = 8;

  std::atomic<uint32_t> state_{0};
  int64_t nanoseconds_ = 0;
};

}  // namespace anvil
