// SPDX-License-Identifier: Apache-2.0
#include "member.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <thread>

namespace anvil::comm {
namespace {

std::string Seconds(Milliseconds time) {
  std::string text = std::to_string(static_cast<double>(time.count()) / 1000);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

}  // namespace

Member::Member(std::shared_ptr<Segment> segment, int rank, std::string name, Milliseconds timeout)
    : segment_(std::move(segment)), rank_(rank), name_(std::move(name)) {
  RankState& mine = segment_->rank(rank);
  mine.pid = getpid();
  mine.presence.store(RankState::kJoined, std::memory_order_seq_cst);
  RingAll();
  const Call call{"joining", std::chrono::steady_clock::now() + timeout, timeout};
  const auto absent = [this](int peer) {
    return segment_->rank(peer).presence.load(std::memory_order_seq_cst) == RankState::kAbsent;
  };
  const auto complete = [&] {
    for (int peer = 0; peer < size(); ++peer) {
      if (absent(peer)) return false;
    }
    return true;
  };
  Await(call, complete, absent);
  OpenPeers();
}

Member::~Member() {
  for (const int file : peers_) {
    if (file >= 0) close(file);
  }
  uint32_t joined = RankState::kJoined;
  segment_->rank(rank_).presence.compare_exchange_strong(joined, RankState::kLeft);
  RingAll();
}

void Member::OpenPeers() {
  peers_.assign(static_cast<size_t>(size()), -1);
  for (int peer = 0; peer < size(); ++peer) {
    const int pid = segment_->rank(peer).pid;
    if (pid == getpid()) continue;
    const long file = syscall(SYS_pidfd_open, pid, 0);
    // A process that is gone already has no file, and is noticed by that.
    if (file < 0 && errno != ESRCH) {
      throw CommError("rank " + std::to_string(rank_) + " cannot watch process " +
                      std::to_string(pid) + " of rank " + std::to_string(peer) + ": " +
                      std::strerror(errno));
    }
    peers_[static_cast<size_t>(peer)] = file < 0 ? -2 : static_cast<int>(file);
  }
}

Call Member::Begin(const char* name, Milliseconds timeout) const {
  const Call call{name, std::chrono::steady_clock::now() + timeout, timeout};
  if (!failure_.empty()) {
    throw CommError(Describe(call) + "the group has failed before: " + failure_);
  }
  if (aborted_.load(std::memory_order_relaxed)) {
    throw CommError(Describe(call) + "the group was aborted");
  }
  return call;
}

void Member::RingAll() const {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank_) Ring(peer);
  }
}

void Member::WakeUp(RankState& state) {
  state.bell.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &state.bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Member::Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool Member::SpinAndYield(bool (*done)(const void*), const void* arg) {
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done(arg)) return true;
      Pause();
    }
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < end);
  return done(arg);
}

// Either the rank that changes something sees this one asleep, or this one sees the change: each
// stores first and looks then, in one order for all.
void Member::Nap(const std::function<bool()>& done) const {
  RankState& mine = segment_->rank(rank_);
  mine.asleep.store(1, std::memory_order_seq_cst);
  const uint32_t seen = mine.bell.load(std::memory_order_seq_cst);
  if (!done()) {
    const timespec time = {0, std::chrono::nanoseconds(kNap).count()};
    syscall(SYS_futex, &mine.bell, FUTEX_WAIT, seen, &time, nullptr, 0);
  }
  mine.asleep.store(0, std::memory_order_seq_cst);
}

void Member::AwaitAsleep(const Call& call, const std::function<bool()>& done,
                         const std::function<bool(int)>& waits_for) {
  while (!done()) {
    Nap(done);
    if (done()) return;
    if (aborted_.load(std::memory_order_relaxed)) throw Fail(call, "the group was aborted");
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_ || !waits_for(peer)) continue;
      const std::string absence = Absence(peer);
      // It may have done its part before it went.
      if (!absence.empty() && waits_for(peer)) throw Fail(call, absence);
    }
    if (std::chrono::steady_clock::now() < call.deadline || done()) continue;
    std::string missing;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_ || !waits_for(peer)) continue;
      missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(peer);
    }
    const std::string words =
        Fail(call, missing + " did not do its part within " + Seconds(call.timeout)).what();
    throw CommTimeout(words);
  }
}

std::string Member::Absence(int rank) const {
  const RankState& state = segment_->rank(rank);
  const std::string who = "rank " + std::to_string(rank);
  switch (state.presence.load(std::memory_order_seq_cst)) {
    case RankState::kLeft:
      return who + " has left the group";
    case RankState::kFailed:
      return who + " has given up: " + state.words;
  }
  if (peers_.empty()) return "";
  const int file = peers_[static_cast<size_t>(rank)];
  pollfd alive = {file, POLLIN, 0};
  if (file == -2 || (file >= 0 && poll(&alive, 1, 0) > 0)) {
    return who + " (process " + std::to_string(state.pid) + ") has died";
  }
  return "";
}

std::string Member::Describe(const Call& call) const {
  return std::string(call.name) + " on rank " + std::to_string(rank_) + " of group '" + name_ +
         "': ";
}

CommError Member::Fail(const Call& call, const std::string& words) {
  failure_ = Describe(call) + words;
  RankState& mine = segment_->rank(rank_);
  std::strncpy(mine.words, failure_.c_str(), sizeof(mine.words) - 1);
  mine.presence.store(RankState::kFailed, std::memory_order_seq_cst);
  RingAll();
  return CommError(failure_);
}

}  // namespace anvil::comm
