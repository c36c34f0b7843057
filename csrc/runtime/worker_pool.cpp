// SPDX-License-Identifier: Apache-2.0
#include "worker_pool.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "device.h"
#include "error.h"
#include "futex.h"
#include "thread.h"

namespace anvil {
namespace {

// The states of an offer.
constexpr uint32_t kNone = 0;    // nothing to take; the worker may be spinning
constexpr uint32_t kOpen = 1;    // a part that nobody has taken
constexpr uint32_t kAsleep = 2;  // nothing to take; the worker sleeps and has to be woken

// The bit of `unfinished_` that says that the caller sleeps.
constexpr uint32_t kCallerAsleep = uint32_t{1} << 31;

// Between two regions of one model layer lie some microseconds: short enough to wait awake.
constexpr auto kSpinTime = std::chrono::microseconds(40);

// More threads than cores are of use to tests only, which have few cores to show that results do
// not depend on how work is cut.
constexpr int kLeastCapacity = 64;

thread_local bool inside_region = false;

// Marks the calling thread while it runs part of a region.
class InsideRegion {
 public:
  InsideRegion() : before_(std::exchange(inside_region, true)) {}
  ~InsideRegion() { inside_region = before_; }
  InsideRegion(const InsideRegion&) = delete;
  InsideRegion& operator=(const InsideRegion&) = delete;

 private:
  const bool before_;
};

// Runs one range; false, with the words of the exception, when it throws.
bool RunRange(const WorkerPool::Region& region, int64_t begin, int64_t end, int worker,
              std::string* words) {
  const InsideRegion inside;
  try {
    region.fn(region.arg, begin, end, worker);
    return true;
  } catch (const std::exception& error) {
    *words = error.what();
  } catch (...) {
  }
  if (words->empty()) *words = "an exception without a message";
  return false;
}

anvilError_t FailRegion(const std::string& words) {
  return Fail(ANVIL_ERROR_COMMAND, "A parallel region failed: " + words);
}

struct ThreadStart {
  WorkerPool* pool;
  int worker;
};

}  // namespace

WorkerPool::WorkerPool(int device, std::vector<int> cores)
    : device_(device),
      cores_(std::move(cores)),
      capacity_(std::max(kLeastCapacity, static_cast<int>(cores_.size()))),
      size_(static_cast<int>(cores_.size())),
      offers_(new Offer[static_cast<size_t>(capacity_)]) {}

anvilError_t WorkerPool::Resize(int count) {
  if (count < 1 || count > capacity_) {
    return Fail(ANVIL_ERROR_INVALID_VALUE, "A device's regions are shared by 1 to " +
                                               std::to_string(capacity_) + " threads, not by " +
                                               std::to_string(count));
  }
  Acquire();
  size_.store(count, std::memory_order_relaxed);
  busy_.store(false, std::memory_order_release);
  return ANVIL_SUCCESS;
}

void WorkerPool::Acquire() {
  while (busy_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
}

void* WorkerPool::ThreadMain(void* arg) {
  const std::unique_ptr<ThreadStart> start(static_cast<ThreadStart*>(arg));
  start->pool->WorkerLoop(start->worker);
  return nullptr;
}

// Until `count` threads take part, the caller included, or the system refuses one.
void WorkerPool::StartThreads(int count) {
  while (threads_ < count && !refused_) {
    auto start = std::make_unique<ThreadStart>(ThreadStart{this, threads_});
    const int status = StartThread(ThreadMain, start.get());
    if (status == 0) {
      start.release();
      ++threads_;
      continue;
    }
    refused_ = true;
    // Slower, but right: worth a word, not a failure.
    std::fprintf(stderr,
                 "anvil: device %d runs on %d of its %d cores: the system refused more threads "
                 "(%s). Raise ulimit -u or the cgroup's pids.max.\n",
                 device_, threads_, size(), std::strerror(status));
  }
}

void WorkerPool::WorkerLoop(int worker) {
  char name[16];
  std::snprintf(name, sizeof(name), "anvil%d-w%d", device_ % 100, worker % 10000);
  SettleThread(name, cores_);
  std::atomic<uint32_t>& offer = offers_[static_cast<size_t>(worker)].state;
  for (;;) {
    const bool offered =
        SpinUntil(kSpinTime, [&] { return offer.load(std::memory_order_acquire) == kOpen; });
    uint32_t expected = kNone;
    if (!offered && offer.compare_exchange_strong(expected, kAsleep, std::memory_order_acq_rel)) {
      while (offer.load(std::memory_order_acquire) == kAsleep) FutexWait(offer, kAsleep);
    }
    RunOffered(worker);
  }
}

// Takes and runs a part unless someone else has.
void WorkerPool::RunOffered(int64_t part) {
  std::atomic<uint32_t>& offer = offers_[static_cast<size_t>(part)].state;
  uint32_t expected = kOpen;
  if (!offer.compare_exchange_strong(expected, kNone, std::memory_order_acq_rel)) return;
  RunPart(region_, part);
  // From here on the region may be over and the next one may begin.
  const uint32_t before = unfinished_.fetch_sub(1, std::memory_order_acq_rel);
  if (before == (kCallerAsleep | 1)) FutexWakeOne(unfinished_);
}

void WorkerPool::RunPart(const Region& region, int64_t part) {
  // Multiplying first would overflow for the largest n.
  const int64_t each = region.n / region.parts, rest = region.n % region.parts;
  const int64_t begin = part * each + std::min(part, rest);
  const int64_t end = begin + each + (part < rest ? 1 : 0);
  std::string words;
  if (RunRange(region, begin, end, static_cast<int>(part), &words)) return;
  std::lock_guard lock(error_mutex_);
  if (error_.empty()) error_ = std::move(words);
}

anvilError_t WorkerPool::TakeError() {
  std::lock_guard lock(error_mutex_);
  if (error_.empty()) return ANVIL_SUCCESS;
  return FailRegion(std::exchange(error_, {}));
}

void WorkerPool::WaitForOthers() {
  const auto done = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
  if (SpinUntil(kSpinTime, done)) return;
  uint32_t left = unfinished_.fetch_or(kCallerAsleep, std::memory_order_acq_rel) | kCallerAsleep;
  while (left != kCallerAsleep) {
    FutexWait(unfinished_, left);
    left = unfinished_.load(std::memory_order_acquire);
  }
  unfinished_.store(0, std::memory_order_relaxed);
}

anvilError_t WorkerPool::Run(int64_t n, int64_t grain, anvilRangeFn fn, void* arg) {
  if (n <= 0) return ANVIL_SUCCESS;
  const int64_t wanted = n / std::max<int64_t>(grain, 1);
  Region region{fn, arg, n, std::min<int64_t>(wanted, size())};
  if (region.parts <= 1 || inside_region || busy_.exchange(true, std::memory_order_acquire)) {
    std::string words;
    return RunRange(region, 0, n, 0, &words) ? ANVIL_SUCCESS : FailRegion(words);
  }
  if (threads_ < region.parts) StartThreads(size());
  region.parts = std::min<int64_t>(region.parts, threads_);
  region_ = region;
  unfinished_.store(static_cast<uint32_t>(region.parts - 1), std::memory_order_relaxed);
  for (int64_t part = 1; part < region.parts; ++part) {
    std::atomic<uint32_t>& offer = offers_[static_cast<size_t>(part)].state;
    if (offer.exchange(kOpen, std::memory_order_acq_rel) == kAsleep) FutexWakeOne(offer);
  }
  RunPart(region, 0);
  for (int64_t part = 1; part < region.parts; ++part) RunOffered(part);
  WaitForOthers();
  const anvilError_t status = TakeError();
  busy_.store(false, std::memory_order_release);
  return status;
}

}  // namespace anvil

using namespace anvil;

anvilError_t anvilParallelFor(int device, int64_t n, int64_t grain, anvilRangeFn fn, void* arg) {
  return Guarded([&] {
    if (fn == nullptr) return FailNull("anvilParallelFor", "fn");
    Device* found = nullptr;
    const anvilError_t status = GetDevice(device, &found);
    return status == ANVIL_SUCCESS ? found->workers.Run(n, grain, fn, arg) : status;
  });
}

anvilError_t anvilSetWorkerCount(int device, int count) {
  return Guarded([&] {
    Device* found = nullptr;
    const anvilError_t status = GetDevice(device, &found);
    return status == ANVIL_SUCCESS ? found->workers.Resize(count) : status;
  });
}

int anvilWorkerCount(int device) {
  Device* found = nullptr;
  const anvilError_t status = Guarded([&] { return FindDevice(device, &found); });
  return status == ANVIL_SUCCESS ? found->workers.size() : 1;
}
