// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernel.h"
#include "scratch.h"

namespace anvil::triton {
namespace {

void on_threads(void*, int count, void (*task)(void*), void* argument) {
  std::vector<std::thread> threads;
  for (int i = 1; i < count; ++i) threads.emplace_back(task, argument);
  task(argument);
  for (std::thread& thread : threads) thread.join();
}

constexpr Team kFour = {.count = 4, .run = &on_threads};

// What the kernels below get as their argument.
struct Seen {
  explicit Seen(size_t programs) : count(programs) {}

  std::vector<std::atomic<int>> count;  // by program
  std::chrono::microseconds length{0};
  int failing = -1;
  std::atomic<bool> scratch_ok{true};

  void on_this_thread() {
    const std::lock_guard<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
  }

  std::mutex mutex;
  std::set<std::thread::id> threads;
};

void busy(std::chrono::microseconds length) {
  const auto end = std::chrono::steady_clock::now() + length;
  while (std::chrono::steady_clock::now() < end) {
  }
}

int32_t note(const void* arguments, const TritonLaunch* launch, int32_t x, int32_t y, int32_t z) {
  Seen* seen = nullptr;
  std::memcpy(&seen, arguments, sizeof seen);
  const int i = x + launch->grid[0] * (y + launch->grid[1] * z);
  seen->count[static_cast<size_t>(i)].fetch_add(1);
  seen->on_this_thread();
  busy(seen->length);
  if (i == seen->failing) {
    launch->fail(launch->context, ("program " + std::to_string(i)).c_str());
    return 1;
  }
  return 0;
}

int32_t fill_scratch(const void* arguments, const TritonLaunch* launch, int32_t x, int32_t,
                     int32_t) {
  Seen* seen = nullptr;
  std::memcpy(&seen, arguments, sizeof seen);
  auto* scratch = static_cast<unsigned char*>(launch->scratch);
  if (reinterpret_cast<uintptr_t>(scratch) % kScratchAlignment != 0) seen->scratch_ok = false;
  std::memset(scratch, x & 255, 4096);
  busy(std::chrono::microseconds(5));
  for (int i = 0; i < 4096; ++i) {
    if (scratch[i] != (x & 255)) seen->scratch_ok = false;
  }
  return 0;
}

int32_t print_twice(const void*, const TritonLaunch* launch, int32_t x, int32_t, int32_t) {
  char text[32];
  const int length = launch->snprintf(text, sizeof text, "pid %d\n", x);
  launch->print(launch->context, text, static_cast<size_t>(length));
  return 0;
}

int32_t do_nothing(const void*, const TritonLaunch*, int32_t, int32_t, int32_t) { return 0; }

int32_t fail_silently(const void*, const TritonLaunch*, int32_t, int32_t, int32_t) { return 1; }

std::string launch(Kernel& kernel, Seen& seen, Grid grid, const Team& team = kFour) {
  Seen* pointer = &seen;
  return run_grid(kernel, &pointer, grid, team);
}

void expect_once_each(const Seen& seen) {
  for (size_t i = 0; i < seen.count.size(); ++i) EXPECT_EQ(seen.count[i].load(), 1) << i;
}

TEST(Grid, RunsEveryProgramOnce) {
  Kernel kernel{.name = "note", .entry = &note};
  for (const Grid grid : {Grid{1, 1, 1}, Grid{7, 3, 5}, Grid{1, 1, 300}, Grid{1000, 1, 1}}) {
    for (const int length : {0, 20}) {
      Seen seen(static_cast<size_t>(grid.programs()));
      seen.length = std::chrono::microseconds(length);
      EXPECT_EQ(launch(kernel, seen, grid), "");
      expect_once_each(seen);
    }
  }
}

TEST(Grid, EmptyRunsNothing) {
  Kernel kernel{.name = "note", .entry = &note};
  Seen seen(0);
  EXPECT_EQ(launch(kernel, seen, {0, 5, 5}), "");
  EXPECT_EQ(launch(kernel, seen, {5, 5, 0}), "");
}

// Unless the host takes the processor away meanwhile, which then looks like a long program.
TEST(Grid, ShortLaunchesStayOnTheCallingThread) {
  Kernel kernel{.name = "do_nothing", .entry = &do_nothing};
  static int shared = 0;
  const Team counted = {.count = 4, .run = [](void*, int, void (*task)(void*), void* argument) {
                          ++shared;
                          task(argument);
                        }};
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(run_grid(kernel, nullptr, {4, 1, 1}, counted), "");
  EXPECT_LT(shared, 500);
}

TEST(Grid, LongLaunchesAreShared) {
  Kernel kernel{.name = "note", .entry = &note};
  Seen first(64);  // nothing is known of the kernel yet
  first.length = std::chrono::microseconds(200);
  EXPECT_EQ(launch(kernel, first, {64, 1, 1}), "");
  EXPECT_GT(first.threads.size(), 1u);
  EXPECT_GT(kernel.nanoseconds_per_program.load(), 100'000);
  Seen second(64);
  second.length = std::chrono::microseconds(200);
  EXPECT_EQ(launch(kernel, second, {64, 1, 1}), "");
  EXPECT_GT(second.threads.size(), 1u);
  expect_once_each(second);
}

TEST(Grid, AKernelThatTurnsOutLongIsSharedAfterAll) {
  Kernel kernel{.name = "note", .entry = &note};
  kernel.nanoseconds_per_program = 1;
  Seen seen(200);
  seen.length = std::chrono::microseconds(200);
  EXPECT_EQ(launch(kernel, seen, {200, 1, 1}), "");
  EXPECT_GT(seen.threads.size(), 1u);
  expect_once_each(seen);
}

TEST(Grid, AThreadThatComesLateFindsNothing) {
  Kernel kernel{.name = "note", .entry = &note};
  const Team late = {.count = 3, .run = [](void*, int count, void (*task)(void*), void* argument) {
                       for (int i = 0; i < count; ++i) task(argument);
                     }};
  Seen seen(50);
  seen.length = std::chrono::microseconds(50);
  EXPECT_EQ(launch(kernel, seen, {50, 1, 1}, late), "");
  expect_once_each(seen);
}

TEST(Grid, TheFirstFailureEndsTheLaunch) {
  for (const int length : {0, 30}) {
    Kernel kernel{.name = "note", .entry = &note};
    Seen seen(10'000);
    seen.length = std::chrono::microseconds(length);
    seen.failing = 5;
    EXPECT_EQ(launch(kernel, seen, {10'000, 1, 1}), "program 5");
    int ran = 0;
    for (const auto& count : seen.count) ran += count.load();
    EXPECT_LT(ran, 5'000);
    seen.failing = -1;
    EXPECT_EQ(launch(kernel, seen, {10, 1, 1}), "");
  }
}

TEST(Grid, AFailureWithoutWordsIsOne) {
  Kernel kernel{.name = "fail_silently", .entry = &fail_silently};
  EXPECT_NE(run_grid(kernel, nullptr, {3, 1, 1}, kFour), "");
}

TEST(Grid, EveryWorkerHasItsScratch) {
  Kernel kernel{.name = "fill_scratch", .entry = &fill_scratch, .scratch_bytes = 4096};
  Seen seen(0);
  EXPECT_EQ(launch(kernel, seen, {500, 1, 1}), "");
  EXPECT_TRUE(seen.scratch_ok.load());
}

TEST(Grid, ScratchThatTheHostDoesNotHaveIsSaid) {
  Kernel kernel{.name = "fill_scratch", .entry = &fill_scratch, .scratch_bytes = SIZE_MAX / 2};
  Seen seen(0);
  EXPECT_NE(launch(kernel, seen, {500, 1, 1}).find("scratch"), std::string::npos);
}

TEST(Grid, PrintsWholePieces) {
  Kernel kernel{.name = "print_twice", .entry = &print_twice};
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_grid(kernel, nullptr, {200, 1, 1}, kFour), "");
  const std::string text = testing::internal::GetCapturedStdout();
  std::multiset<std::string> lines, expected;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.insert(text.substr(begin, end - begin));
    begin = end + 1;
  }
  for (int i = 0; i < 200; ++i) expected.insert("pid " + std::to_string(i));
  EXPECT_EQ(lines, expected);
}

}  // namespace
}  // namespace anvil::triton
