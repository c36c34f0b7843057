// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "worker_pool.h"

namespace anvil {
namespace {

// Pools are never destroyed (worker_pool.h), neither are the tests'. More threads than cores: the
// cores named may not even exist, which must not matter.
WorkerPool& NewPool(int size) {
  static std::vector<WorkerPool*>& all = *new std::vector<WorkerPool*>;
  std::vector<int> cores(static_cast<size_t>(size));
  for (int core = 0; core < size; ++core) cores[static_cast<size_t>(core)] = core;
  all.push_back(new WorkerPool(0, cores));
  return *all.back();
}

using Body = std::function<void(int64_t begin, int64_t end, int worker)>;

anvilError_t RunRegion(WorkerPool& pool, int64_t n, int64_t grain, Body body) {
  return pool.Run(
      n, grain,
      [](void* arg, int64_t begin, int64_t end, int worker) {
        (*static_cast<Body*>(arg))(begin, end, worker);
      },
      &body);
}

TEST(WorkerPool, CoversEveryIndexOnceInRangesOfAtLeastTheGrain) {
  WorkerPool& pool = NewPool(4);
  for (int64_t n : {1, 2, 3, 4, 5, 7, 8, 63, 64, 1000}) {
    for (int64_t grain : {1, 2, 3, 16, 400, 5000}) {
      std::vector<std::atomic<int>> visits(static_cast<size_t>(n));
      std::atomic<int> ranges{0}, workers{0};
      ASSERT_EQ(RunRegion(pool, n, grain,
                          [&](int64_t begin, int64_t end, int worker) {
                            ASSERT_LT(begin, end);
                            ASSERT_GE(end - begin, std::min(n, grain));
                            ASSERT_GE(worker, 0);
                            ASSERT_LT(worker, pool.size());
                            ASSERT_EQ(workers.fetch_or(1 << worker) & (1 << worker), 0)
                                << "two ranges of one worker";
                            ++ranges;
                            for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
                          }),
                ANVIL_SUCCESS);
      for (const auto& count : visits) ASSERT_EQ(count, 1);
      ASSERT_EQ(ranges, std::max<int64_t>(1, std::min<int64_t>(n / grain, pool.size())));
    }
  }
}

TEST(WorkerPool, IsSharedByAsManyThreadsAsWereSet) {
  WorkerPool& pool = NewPool(2);
  for (int size : {3, 1, 2, pool.capacity()}) {
    ASSERT_EQ(pool.Resize(size), ANVIL_SUCCESS);
    ASSERT_EQ(pool.size(), size);
    std::atomic<int64_t> ranges{0}, indices{0};
    ASSERT_EQ(RunRegion(pool, 1000, 1,
                        [&](int64_t begin, int64_t end, int worker) {
                          ASSERT_LT(worker, size);
                          ++ranges;
                          indices += end - begin;
                        }),
              ANVIL_SUCCESS);
    ASSERT_EQ(ranges, size);
    ASSERT_EQ(indices, 1000);
  }
  EXPECT_EQ(pool.Resize(0), ANVIL_ERROR_INVALID_VALUE);
  EXPECT_EQ(pool.Resize(pool.capacity() + 1), ANVIL_ERROR_INVALID_VALUE);
  EXPECT_EQ(pool.size(), pool.capacity());
}

TEST(WorkerPool, NothingToDoCallsNothing) {
  WorkerPool& pool = NewPool(2);
  for (int64_t n : {int64_t{0}, int64_t{-5}}) {
    EXPECT_EQ(RunRegion(pool, n, 1, [](int64_t, int64_t, int) { FAIL(); }), ANVIL_SUCCESS);
  }
}

TEST(WorkerPool, TheLargestRangeDoesNotOverflow) {
  WorkerPool& pool = NewPool(4);
  std::atomic<int64_t> covered{0};
  RunRegion(pool, INT64_MAX, 0, [&](int64_t begin, int64_t end, int) {
    ASSERT_LE(0, begin);
    ASSERT_LT(begin, end);
    covered += end - begin;
  });
  EXPECT_EQ(covered, INT64_MAX);
}

TEST(WorkerPool, SeveralThreadsTakePart) {
  WorkerPool& pool = NewPool(2);
  // Each range waits for the other: only two threads get through.
  std::atomic<int> arrived{0};
  RunRegion(pool, 2, 1, [&](int64_t, int64_t, int) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 2);
}

TEST(WorkerPool, TheCallerRunsTheFirstRange) {
  WorkerPool& pool = NewPool(3);
  std::thread::id first;
  RunRegion(pool, 3, 1, [&](int64_t begin, int64_t, int worker) {
    if (begin == 0) {
      EXPECT_EQ(worker, 0);
      first = std::this_thread::get_id();
    }
  });
  EXPECT_EQ(first, std::this_thread::get_id());
}

TEST(WorkerPool, NestedRegionsRunInline) {
  WorkerPool& pool = NewPool(3);
  WorkerPool& other = NewPool(3);
  std::atomic<int> inner{0};
  const auto nest = [&](int64_t, int64_t, int) {
    const std::thread::id here = std::this_thread::get_id();
    for (WorkerPool* target : {&pool, &other}) {
      RunRegion(*target, 100, 1, [&](int64_t begin, int64_t end, int worker) {
        EXPECT_EQ(begin, 0);
        EXPECT_EQ(end, 100);
        EXPECT_EQ(worker, 0);
        EXPECT_EQ(std::this_thread::get_id(), here);
        ++inner;
      });
    }
  };
  RunRegion(pool, 3, 1, nest);
  EXPECT_EQ(inner, 6);
  RunRegion(pool, 1, 1, nest);  // also below a region of one range
  EXPECT_EQ(inner, 8);
}

TEST(WorkerPool, AConcurrentCallerRunsItsRegionAlone) {
  WorkerPool& pool = NewPool(2);
  RunRegion(pool, 2, 1, [&](int64_t, int64_t, int worker) {
    if (worker != 0) return;
    std::thread second([&] {
      const std::thread::id here = std::this_thread::get_id();
      int ranges = 0;
      RunRegion(pool, 50, 1, [&](int64_t begin, int64_t end, int) {
        EXPECT_EQ(end - begin, 50);
        EXPECT_EQ(std::this_thread::get_id(), here);
        ++ranges;
      });
      EXPECT_EQ(ranges, 1);
    });
    second.join();
  });
}

TEST(WorkerPool, ManyRegionsFromManyThreads) {
  WorkerPool& pool = NewPool(3);
  constexpr int kRegions = 10000;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int region = 0; region < kRegions; ++region) {
        std::atomic<int64_t> sum{0};
        RunRegion(pool, 16, 1, [&](int64_t begin, int64_t end, int) {
          for (int64_t i = begin; i < end; ++i) sum += i;
        });
        ASSERT_EQ(sum, 120);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(WorkerPool, WakesAfterSleep) {
  WorkerPool& pool = NewPool(2);
  for (int region = 0; region < 20; ++region) {
    // Both ranges have to be under way at once, with the other thread asleep at first.
    std::atomic<int> arrived{0};
    RunRegion(pool, 2, 1, [&](int64_t, int64_t, int) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST(WorkerPool, TheCallerSleepsThroughALongRange) {
  WorkerPool& pool = NewPool(2);
  std::atomic<int> arrived{0};
  bool finished = false;
  RunRegion(pool, 2, 1, [&](int64_t, int64_t, int worker) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
    if (worker == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    finished = true;
  });
  EXPECT_TRUE(finished);
}

TEST(WorkerPool, ExceptionsBecomeErrors) {
  WorkerPool& pool = NewPool(3);
  std::atomic<int> ranges{0};
  for (int thrower : {0, 1, 2}) {
    EXPECT_EQ(RunRegion(pool, 3, 1,
                        [&](int64_t, int64_t, int worker) {
                          ++ranges;
                          if (worker == thrower) throw std::runtime_error("no such luck");
                        }),
              ANVIL_ERROR_COMMAND);
    EXPECT_NE(std::string(anvilGetLastErrorMessage()).find("no such luck"), std::string::npos);
  }
  EXPECT_EQ(ranges, 9);  // the others still ran
  EXPECT_EQ(RunRegion(pool, 1, 1, [](int64_t, int64_t, int) { throw 5; }), ANVIL_ERROR_COMMAND);
  EXPECT_EQ(RunRegion(pool, 3, 1, [](int64_t, int64_t, int) {}), ANVIL_SUCCESS);
}

}  // namespace
}  // namespace anvil
