// SPDX-License-Identifier: Apache-2.0
// One rank's membership in a group: who else is there, waiting for them, and failing together.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "error.h"
#include "segment.h"

namespace anvil::comm {

using Milliseconds = std::chrono::milliseconds;

// What a rank is at, for whoever has to hear that it cannot be finished.
struct Call {
  const char* name;  // "all_reduce"
  std::chrono::steady_clock::time_point deadline;
  Milliseconds timeout;
};

class Member {
 public:
  // Joins and waits for the others. `name` is the group's, for messages. Throws CommTimeout, which
  // names those that did not come.
  Member(std::shared_ptr<Segment> segment, int rank, std::string name, Milliseconds timeout);
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  // Leaves: whoever waits for this rank afterwards hears that it has left.
  ~Member();

  int rank() const { return rank_; }
  int size() const { return segment_->ranks(); }
  const Segment& segment() const { return *segment_; }

  // Begins a call. Throws what made the group fail, if it has.
  Call Begin(const char* name, Milliseconds timeout) const;

  // Waits until done(), which only reads the segment, with sequentially consistent loads. Awake for
  // a moment, then asleep: the rank that is waited for may want this core. `waits_for(rank)` says
  // whose doing is still missing. Throws CommError, which names that rank, when it has died, left
  // or failed, or when the time is up; the group has then failed on this rank and all others hear
  // so.
  template <typename Done, typename WaitsFor>
  void Await(const Call& call, const Done& done, const WaitsFor& waits_for) {
    if (SpinUntil(done)) return;
    AwaitAsleep(call, done, waits_for);
  }

  // After a change, stored sequentially consistently, that `rank` may be waiting for.
  void Ring(int rank) const {
    RankState& state = segment_->rank(rank);
    if (state.asleep.load(std::memory_order_seq_cst) != 0) WakeUp(state);
  }
  void RingAll() const;

  // Makes the group fail here, and the others hear of it; the error to throw, with these words
  // after those that name the call.
  CommError Fail(const Call& call, const std::string& words);

  // From any thread: calls that wait, and those to come, throw.
  void Abort() { aborted_.store(true, std::memory_order_relaxed); }

 private:
  static constexpr auto kSpinTime = std::chrono::microseconds(50);
  // How long a death may go unnoticed.
  static constexpr auto kNap = Milliseconds(20);

  template <typename Done>
  static bool SpinUntil(const Done& done) {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      Pause();
    }
    return SpinAndYield([](const void* arg) { return (*static_cast<const Done*>(arg))(); }, &done);
  }
  static bool SpinAndYield(bool (*done)(const void*), const void* arg);
  static void Pause();
  static void WakeUp(RankState& state);

  void AwaitAsleep(const Call& call, const std::function<bool()>& done,
                   const std::function<bool(int)>& waits_for);
  void Nap(const std::function<bool()>& done) const;
  // Why `rank` will not do what is waited for, or "" while it may.
  std::string Absence(int rank) const;
  std::string Describe(const Call& call) const;
  void OpenPeers();

  const std::shared_ptr<Segment> segment_;
  const int rank_;
  const std::string name_;
  std::vector<int> peers_;  // a pidfd for each rank; -1: this process
  std::atomic<bool> aborted_{false};
  std::string failure_;  // the words of the call that failed; "": none has
};

}  // namespace anvil::comm
