// SPDX-License-Identifier: Apache-2.0
#include "kernel.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <mutex>

#include "scratch.h"

namespace anvil::triton {
namespace {

// A launch expected to take longer is shared; waking the others and waiting for them costs about a
// quarter of it.
constexpr float kWorthSharing = 20'000;  // nanoseconds
// How long a thread works between two looks at the clock, or at what is left to do.
constexpr float kTurn = 2'000;
// Of what is left, a thread takes this part of its fair share.
constexpr int64_t kTurnsPerThread = 4;

using Clock = std::chrono::steady_clock;

float nanoseconds_since(Clock::time_point start) {
  return static_cast<float>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

void print_text(void* /*context*/, const char* text, size_t length) {
  while (length > 0) {
    const ssize_t written = write(STDOUT_FILENO, text, length);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody reads it
    text += written;
    length -= static_cast<size_t>(written);
  }
}

class Run {
 public:
  Run(Kernel& kernel, const void* arguments, const Grid& grid)
      : kernel_(kernel), arguments_(arguments), grid_(grid), total_(grid.programs()) {}

  std::string everything(const Team& team) {
    if (total_ == 0) return "";
    float estimate = kernel_.nanoseconds_per_program.load(std::memory_order_relaxed);
    const bool alone = team.count <= 1 || total_ == 1;
    if (alone || estimate * static_cast<float>(total_) <= kWorthSharing) {
      estimate = alone_while_short(estimate, !alone);
    }
    if (next_.load(std::memory_order_relaxed) < total_) {
      turn_ = programs_in(kTurn, estimate);
      workers_ = team.count;
      team.run(team.context, team.count, [](void* run) { static_cast<Run*>(run)->share(); }, this);
    }
    learn();
    return std::move(failure_);
  }

 private:
  static int64_t programs_in(float nanoseconds, float each) {
    return each <= 0 ? 1 : static_cast<int64_t>(std::clamp(nanoseconds / each, 1.0f, 1e6f));
  }

  // Works on the calling thread to the end or, where others may help, until what is left turns out
  // to be worth it. Returns the nanoseconds of a program.
  float alone_while_short(float estimate, bool may_share) {
    const Clock::time_point start = Clock::now();
    TritonLaunch launch;
    if (!prepare(launch)) return estimate;
    int64_t done = 0;
    int64_t turn = 1;  // grows from one program on: this launch may be unlike those before
    float elapsed = 0;
    while (done < total_) {
      const int64_t count = may_share ? std::min(turn, total_ - done) : total_;
      if (!programs(launch, done, done + count)) return estimate;
      done += count;
      elapsed = nanoseconds_since(start);
      estimate = elapsed / static_cast<float>(done);
      turn = std::min(2 * turn, programs_in(kTurn, estimate));
      if (may_share && estimate * static_cast<float>(total_ - done) > kWorthSharing) break;
    }
    next_.store(done, std::memory_order_relaxed);
    finished(elapsed, done);
    return estimate;
  }

  // One thread's part of a shared grid.
  void share() {
    const Clock::time_point start = Clock::now();
    TritonLaunch launch;
    int64_t done = 0;
    int64_t begin = next_.load(std::memory_order_relaxed);
    while (begin < total_) {
      const int64_t part = (total_ - begin) / (workers_ * kTurnsPerThread);
      const int64_t count = std::max(part, turn_);
      begin = next_.fetch_add(count, std::memory_order_relaxed);
      if (begin >= total_) break;
      if (done == 0 && !prepare(launch)) return;
      const int64_t end = std::min(begin + count, total_);
      if (!programs(launch, begin, end)) return;
      done += end - begin;
      begin = next_.load(std::memory_order_relaxed);
    }
    if (done > 0) finished(nanoseconds_since(start), done);
  }

  bool prepare(TritonLaunch& launch) {
    launch = {{grid_.x, grid_.y, grid_.z}, 0, nullptr, this, &print_text, &fail, &std::snprintf};
    if (kernel_.scratch_bytes == 0) return true;
    launch.scratch = thread_scratch(kernel_.scratch_bytes);
    if (launch.scratch != nullptr) return true;
    const std::string words = "out of memory: each worker needs " +
                              std::to_string(kernel_.scratch_bytes) +
                              " bytes of scratch on the host";
    fail(this, words.c_str());
    stop();
    return false;
  }

  // Programs [begin, end); false when the launch has failed, here or on another thread.
  bool programs(const TritonLaunch& launch, int64_t begin, int64_t end) {
    auto x = static_cast<int32_t>(begin % grid_.x);
    const int64_t row = begin / grid_.x;
    auto y = static_cast<int32_t>(row % grid_.y);
    auto z = static_cast<int32_t>(row / grid_.y);
    for (int64_t i = begin; i < end; ++i) {
      if (kernel_.entry(arguments_, &launch, x, y, z) != 0) stop();
      if (stopped_.load(std::memory_order_relaxed)) return false;
      if (++x == grid_.x) {
        x = 0;
        if (++y == grid_.y) {
          y = 0;
          ++z;
        }
      }
    }
    return true;
  }

  void stop() {
    stopped_.store(true, std::memory_order_relaxed);
    next_.store(total_, std::memory_order_relaxed);
  }

  static void fail(void* context, const char* message) {
    Run& run = *static_cast<Run*>(context);
    const std::lock_guard<std::mutex> lock(run.mutex_);
    if (run.failure_.empty()) run.failure_ = message;
  }

  void finished(float nanoseconds, int64_t count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    busy_ += nanoseconds;
    done_ += count;
  }

  void learn() {
    if (stopped_.load(std::memory_order_relaxed)) {
      if (failure_.empty()) failure_ = "a program failed without saying why";
      return;
    }
    const float measured = busy_ / static_cast<float>(done_);
    std::atomic<float>& mean = kernel_.nanoseconds_per_program;
    const float before = mean.load(std::memory_order_relaxed);
    mean.store(before == 0 ? measured : before + (measured - before) / 4,
               std::memory_order_relaxed);
  }

  Kernel& kernel_;
  const void* const arguments_;
  const Grid grid_;
  const int64_t total_;
  int64_t turn_ = 1;
  int64_t workers_ = 1;
  std::atomic<int64_t> next_{0};  // the first program that nobody has taken
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::string failure_;
  float busy_ = 0;  // nanoseconds, of all threads together
  int64_t done_ = 0;
};

}  // namespace

std::string run_grid(Kernel& kernel, const void* arguments, const Grid& grid, const Team& team) {
  return Run(kernel, arguments, grid).everything(team);
}

}  // namespace anvil::triton
