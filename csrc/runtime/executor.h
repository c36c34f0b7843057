// SPDX-License-Identifier: Apache-2.0
// The thread of a device that runs what its streams hold, one command at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <random>
#include <span>
#include <vector>

#include "entry.h"

namespace anvil {

struct Device;

// Submitters push entries onto one stack, the inbox, with one compare-and-exchange; the executor
// takes it as a whole and sorts it into the streams' queues, which are its own. What state the
// executor is in stands in the inbox as well, so that a submitter looks at nothing else.
//
// Never destroyed: its thread is detached and ends with the process.
class Executor {
 public:
  // `longest_delay`: before each command a random time up to that is slept (microseconds).
  Executor(const Device* device, std::vector<int> cores, uint32_t longest_delay);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Queues the entry on its stream; the first one starts the thread. Fails, leaving the entry to
  // the caller, when the system refuses the thread or the process exits.
  anvilError_t Push(Entry* entry);

  // Makes all executors look again whether streams that wait may go on.
  static void PokeAll();

  // The process exits: everything that is queued has some seconds to run; then, and at once where
  // nothing is queued, no executor runs anything any more and Push fails.
  static void StopAll() noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  anvilError_t Start();
  static void* ThreadMain(void* arg);
  void Loop();
  void TakeSubmissions();
  void Enqueue(Entry* entry);
  anvilStream_t Next();
  bool MayRun(const Entry& entry) const;
  void RunFirst(anvilStream_t stream);
  void RunCommand(Entry* entry);
  void Recycle(Entry* entry);
  void AwaitSubmissions();
  void Poke();

  static std::span<Executor* const> All();
  bool running_here() const;  // whether the calling thread is this executor's
  void Close(Clock::time_point deadline);
  Entry* LastSubmissions();
  void AwaitStop();
  void Stop();

  // What an inbox holds instead of entries.
  static inline Entry* const kNotStarted = reinterpret_cast<Entry*>(1);
  static inline Entry* const kAsleep = reinterpret_cast<Entry*>(2);  // empty; has to be woken
  static inline Entry* const kClosed = reinterpret_cast<Entry*>(3);

  const Device* const device_;
  const std::vector<int> cores_;
  const uint32_t longest_delay_;

  // The latest submission, linked to those before it, or the executor's state.
  alignas(64) std::atomic<Entry*> inbox_;
  alignas(64) std::atomic<uint32_t> wakeups_{0};  // what the executor sleeps on
  std::atomic<bool> poked_{false};                // poke_ is in the inbox
  Entry poke_{};

  // The executor's own.
  alignas(64) std::vector<anvilStream_t> active_;  // streams whose queues hold entries
  Entry* recycled_ = nullptr;                      // on their way back to the submitters
  Entry* last_recycled_ = nullptr;
  size_t recycled_count_ = 0;
  std::minstd_rand random_;  // the same sequence in every run
  bool closed_ = false;

  // The end.
  std::atomic<Entry*> last_inbox_;  // what the inbox held when it was closed
  Clock::time_point deadline_;      // written before last_inbox_
  std::mutex mutex_;                // guards what follows; held by whoever starts the thread
  std::condition_variable changed_;
  bool started_ = false;
  bool stopped_ = false;
  bool abandoned_ = false;  // StopAll did not wait any longer
};

}  // namespace anvil
