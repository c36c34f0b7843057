// SPDX-License-Identifier: Apache-2.0
// How executors end with the process: what static objects hold must not be destroyed under a
// running command.
#include "device.h"
#include "error.h"
#include "executor.h"
#include "process.h"

namespace anvil {
namespace {

// What is queued has so long to run; then it is dropped, for which there is a little more time.
constexpr auto kMostToRun = std::chrono::seconds(5);
constexpr auto kMostToDrop = std::chrono::seconds(1);

}  // namespace

void Executor::StopAll() noexcept {
  if (IsForkedChild()) return;  // the threads are the parent's
  const auto deadline = Clock::now() + kMostToRun;
  const auto all = All();
  for (Executor* executor : all) executor->Close(deadline);
  for (Executor* executor : all) executor->AwaitStop();
}

void Executor::Close(Clock::time_point deadline) {
  deadline_ = deadline;
  Entry* const last = inbox_.exchange(kClosed, std::memory_order_acq_rel);
  const bool entries = last != kAsleep && last != kNotStarted;
  last_inbox_.store(entries ? last : nullptr, std::memory_order_release);
  if (last != kAsleep) return;
  wakeups_.fetch_add(1, std::memory_order_release);
  FutexWakeOne(wakeups_);
}

Entry* Executor::LastSubmissions() {
  for (;;) {
    Entry* const last = last_inbox_.load(std::memory_order_acquire);
    if (last != kNotStarted) return last;
    Pause();
  }
}

void Executor::AwaitStop() {
  if (running_here()) return;  // a command has called exit()
  std::unique_lock lock(mutex_);
  if (!started_) return;
  changed_.wait_until(lock, deadline_ + kMostToDrop, [this] { return stopped_; });
  abandoned_ = !stopped_;
}

// Drops what had no time to run: released and completed like everything else, with an error.
void Executor::Stop() {
  const auto abandoned = [this] {
    std::lock_guard lock(mutex_);
    return abandoned_;
  };
  while (!active_.empty() && !abandoned()) {
    anvilStream_t stream = active_.front();
    stream->queue.first()->run = [](void*) {
      return Fail(ANVIL_ERROR_SYSTEM, "the process exited before it could run.");
    };
    RunFirst(stream);
  }
  std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace anvil
