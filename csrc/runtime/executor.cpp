// SPDX-License-Identifier: Apache-2.0
#include "executor.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "command.h"
#include "device.h"
#include "error.h"
#include "thread.h"

namespace anvil {
namespace {

// A program that launches one operator after the other does so every few microseconds: short enough
// to wait awake, so that neither side pays for a system call.
constexpr auto kSpinTime = std::chrono::microseconds(50);

// Entries go back to the submitters in lots, so that the two do not meet for each.
constexpr size_t kRecycleLot = 32;

// All of the process; written while devices are made, which is one thread's work.
std::atomic<int> executor_count{0};
Executor* executors[ANVIL_MAX_DEVICES];

thread_local constinit const Executor* own_executor = nullptr;

}  // namespace

Executor::Executor(const Device* device, std::vector<int> cores, uint32_t longest_delay)
    : device_(device),
      cores_(std::move(cores)),
      longest_delay_(longest_delay),
      inbox_(kNotStarted),
      last_inbox_(kNotStarted) {
  poke_.kind = Entry::Kind::kPoke;
  const int index = executor_count.load(std::memory_order_relaxed);
  executors[index] = this;
  executor_count.store(index + 1, std::memory_order_release);
}

anvilError_t Executor::Push(Entry* entry) {
  Entry* head = inbox_.load(std::memory_order_relaxed);
  for (;;) {
    if (head == kNotStarted) {
      const anvilError_t status = Start();
      if (status != ANVIL_SUCCESS) return status;
      head = inbox_.load(std::memory_order_relaxed);
      continue;
    }
    if (head == kClosed) {
      return Fail(ANVIL_ERROR_SYSTEM,
                  "The process is exiting: device " + std::to_string(device_->index) +
                      " takes no more work. Wait for threads that use the device before exit().");
    }
    entry->next = head == kAsleep ? nullptr : head;
    if (inbox_.compare_exchange_weak(head, entry, std::memory_order_acq_rel,
                                     std::memory_order_relaxed)) {
      break;
    }
  }
  if (head == kAsleep) {
    wakeups_.fetch_add(1, std::memory_order_release);
    FutexWakeOne(wakeups_);
  }
  return ANVIL_SUCCESS;
}

anvilError_t Executor::Start() {
  std::lock_guard lock(mutex_);
  if (started_) return ANVIL_SUCCESS;
  int status = 0;
  // Once, from the first executor on: what is registered later, static objects made meanwhile
  // included, ends before the executors do.
  static const int registered = std::atexit([] { StopAll(); });
  if (registered == 0) status = StartThread(ThreadMain, this);
  if (registered != 0 || status != 0) {
    return Fail(ANVIL_ERROR_SYSTEM, "The system refused the thread that runs device " +
                                        std::to_string(device_->index) + "'s commands (" +
                                        std::strerror(status != 0 ? status : ENOMEM) +
                                        "). Raise ulimit -u or the cgroup's pids.max.");
  }
  started_ = true;
  Entry* expected = kNotStarted;
  inbox_.compare_exchange_strong(expected, nullptr, std::memory_order_acq_rel);
  return ANVIL_SUCCESS;
}

void* Executor::ThreadMain(void* arg) {
  Executor* executor = static_cast<Executor*>(arg);
  own_executor = executor;
  char name[16];
  std::snprintf(name, sizeof(name), "anvil%d-x", executor->device_->index % 100);
  SettleThread(name, executor->cores_);
  {
    std::lock_guard started(executor->mutex_);  // the inbox is open from here on
  }
  executor->Loop();
  return nullptr;
}

void Executor::Loop() {
  for (;;) {
    TakeSubmissions();
    if (closed_ && (active_.empty() || Clock::now() > deadline_)) return Stop();
    if (anvilStream_t next = Next()) {
      RunFirst(next);
    } else {
      AwaitSubmissions();
    }
  }
}

void Executor::TakeSubmissions() {
  Entry* newest = inbox_.load(std::memory_order_relaxed);
  while (newest != nullptr && newest != kClosed &&
         !inbox_.compare_exchange_weak(newest, nullptr, std::memory_order_acq_rel,
                                       std::memory_order_relaxed)) {
  }
  if (newest == kClosed) {
    if (closed_) return;
    closed_ = true;
    newest = LastSubmissions();
  }
  Entry* oldest = nullptr;
  while (newest != nullptr) {
    Entry* const before = newest->next;
    newest->next = oldest;
    oldest = newest;
    newest = before;
  }
  while (oldest != nullptr) {
    Entry* const after = oldest->next;
    Enqueue(oldest);
    oldest = after;
  }
}

void Executor::Enqueue(Entry* entry) {
  if (entry == &poke_) {
    // Reads what the poker wrote, that of pokers who found it set included.
    poked_.exchange(false, std::memory_order_acq_rel);
    return;
  }
  EntryQueue& queue = entry->stream->queue;
  if (queue.first() == nullptr) active_.push_back(entry->stream);
  queue.Push(entry);
}

bool Executor::MayRun(const Entry& entry) const {
  if (entry.kind != Entry::Kind::kWait || entry.completion->done()) return true;
  // What passes on this device is passed by this thread, which looks again afterwards.
  return entry.completion->device != device_ && entry.completion->Watch();
}

anvilStream_t Executor::Next() {
  anvilStream_t best = nullptr;
  for (anvilStream_t stream : active_) {
    const Entry& entry = *stream->queue.first();
    const bool better =
        best == nullptr || stream->priority < best->priority ||
        (stream->priority == best->priority && entry.ticket < best->queue.first()->ticket);
    if (better && MayRun(entry)) best = stream;
  }
  return best;
}

// Nothing of the stream may be touched once its last entry counts as completed.
void Executor::RunFirst(anvilStream_t stream) {
  Entry* const entry = stream->queue.Pop();
  if (stream->queue.first() == nullptr) std::erase(active_, stream);
  switch (entry->kind) {
    case Entry::Kind::kCommand:
    case Entry::Kind::kInternalCommand:
      RunCommand(entry);
      stream->CountCompleted();
      break;
    case Entry::Kind::kRecord:
      if (entry->completion->Finish([stream] { stream->CountCompleted(); })) PokeAll();
      break;
    case Entry::Kind::kClose:
      stream->device->streams.Remove(stream);
      stream->CountCompleted();
      break;
    case Entry::Kind::kWait:
    case Entry::Kind::kPoke:
      stream->CountCompleted();
      break;
  }
  Recycle(entry);
}

void Executor::RunCommand(Entry* entry) {
  if (longest_delay_ > 0) {
    std::uniform_int_distribution<uint32_t> delays(0, longest_delay_);
    std::this_thread::sleep_for(std::chrono::microseconds(delays(random_)));
  }
  const RunningCommand running(entry->stream);
  sanitizer::Starting(entry->ticket);
  const anvilError_t status = Run(entry->name, entry->run, entry->arg);
  sanitizer::Finished(entry->ticket);
  if (status != ANVIL_SUCCESS) entry->stream->KeepError(status, anvilGetLastErrorMessage());
  // What the command kept alive is released when those who wait for it go on.
  if (entry->destroy != nullptr) entry->destroy(entry->arg);
}

void Executor::Recycle(Entry* entry) {
  if (entry->kind != Entry::Kind::kCommand) {
    entry->completion.reset();
    entry->keeps.reset();
  }
  if (recycled_ == nullptr) last_recycled_ = entry;
  entry->next = recycled_;
  recycled_ = entry;
  if (++recycled_count_ < kRecycleLot) return;
  ReturnEntries(recycled_, last_recycled_, recycled_count_);
  recycled_ = nullptr;
  recycled_count_ = 0;
}

void Executor::AwaitSubmissions() {
  if (closed_) {
    // Events of other devices wake nobody any more; this lasts for some seconds at most.
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    return;
  }
  const auto submitted = [this] { return inbox_.load(std::memory_order_relaxed) != nullptr; };
  if (SpinUntil(kSpinTime, submitted)) return;
  const uint32_t before = wakeups_.load(std::memory_order_relaxed);
  Entry* expected = nullptr;
  if (!inbox_.compare_exchange_strong(expected, kAsleep, std::memory_order_acq_rel)) return;
  while (wakeups_.load(std::memory_order_acquire) == before) FutexWait(wakeups_, before);
}

void Executor::Poke() {
  if (inbox_.load(std::memory_order_relaxed) == kNotStarted) return;
  // A closed inbox refuses it: then the executor looks again by itself.
  if (!poked_.exchange(true, std::memory_order_acq_rel)) Push(&poke_);
}

void Executor::PokeAll() {
  for (Executor* executor : All()) executor->Poke();
}

std::span<Executor* const> Executor::All() {
  return {executors, static_cast<size_t>(executor_count.load(std::memory_order_acquire))};
}

bool Executor::running_here() const { return own_executor == this; }

}  // namespace anvil
