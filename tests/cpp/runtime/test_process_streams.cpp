// SPDX-License-Identifier: Apache-2.0
// What the environment does to streams.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "child_process.h"
#include "stream_work.h"

namespace {

class BlockingDeathTest : public testing::Test {
 protected:
  static anvilStream_t Start() {
    UseOneSmallDevice();
    setenv("ANVIL_LAUNCH_BLOCKING", "1", 1);
    anvilStream_t stream = nullptr;
    REQUIRE_OK(anvilStreamCreate(&stream, 0, 0));
    return stream;
  }
};

TEST_F(BlockingDeathTest, CommandsRunOnTheirSubmitterBeforeSubmitReturns) {
  const auto child = [] {
    anvilStream_t stream = Start();
    const auto alive = std::make_shared<int>(0);
    std::thread::id ran_on;
    REQUIRE_OK(Do(stream, [&ran_on, alive] { ran_on = std::this_thread::get_id(); }));
    REQUIRE(ran_on == std::this_thread::get_id());
    REQUIRE(alive.use_count() == 1);  // destroyed
    REQUIRE(anvilStreamIsBusy(stream) == 0);
    REQUIRE_OK(anvilStreamQuery(stream));
    // The submission reports the error, and so does the next wait.
    const auto fails = [] { return anvilSetDevice(77); };
    REQUIRE(Submit(stream, fails) == ANVIL_ERROR_INVALID_DEVICE);
    REQUIRE(anvilStreamSynchronize(stream) == ANVIL_ERROR_INVALID_DEVICE);
    REQUIRE_OK(anvilStreamSynchronize(stream));
    REQUIRE(Submit(stream, fails) == ANVIL_ERROR_INVALID_DEVICE);
    REQUIRE_OK(anvilStreamDestroy(stream));
    REQUIRE(anvilDeviceSynchronize(0) == ANVIL_ERROR_INVALID_DEVICE);
    std::fprintf(stderr, "%s\n", anvilGetLastErrorMessage());
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "'work' failed: .*no device 77");
}

TEST_F(BlockingDeathTest, EventsAreReachedAtOnce) {
  const auto child = [] {
    anvilStream_t stream = Start();
    anvilEvent_t start, end;
    REQUIRE_OK(anvilEventCreate(&start, ANVIL_EVENT_TIMING));
    REQUIRE_OK(anvilEventCreate(&end, ANVIL_EVENT_TIMING));
    REQUIRE_OK(anvilEventRecord(start, stream));
    REQUIRE_OK(anvilEventQuery(start));
    REQUIRE_OK(anvilStreamWaitEvent(stream, start));
    REQUIRE_OK(anvilEventRecord(end, stream));
    float milliseconds = -1;
    REQUIRE_OK(anvilEventElapsedTime(&milliseconds, start, end));
    REQUIRE(milliseconds >= 0);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

TEST_F(BlockingDeathTest, ThreadsTakeTurnsAndWaitForEachOther) {
  const auto child = [] {
    anvilStream_t stream = Start();
    int64_t unguarded = 0;  // the stream's order is all that protects it
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&] {
        for (int i = 0; i < 2000; ++i) REQUIRE_OK(Do(stream, [&unguarded] { ++unguarded; }));
      });
    }
    for (std::thread& thread : threads) thread.join();
    REQUIRE(unguarded == 8000);

    Gate running;
    const auto gate = std::make_shared<Gate>();
    std::atomic<bool> ran{false};
    std::thread submitter([&] {
      REQUIRE_OK(Do(stream, [&] {
        running.Open();
        gate->Pass();
        ran = true;
      }));
    });
    running.Pass();
    REQUIRE(anvilStreamQuery(stream) == ANVIL_ERROR_NOT_READY);
    REQUIRE(anvilStreamIsBusy(stream) == 1);
    std::thread waiter([&] {
      REQUIRE_OK(anvilStreamSynchronize(stream));
      REQUIRE(ran);
    });
    gate->Open();
    waiter.join();
    submitter.join();
    REQUIRE_OK(anvilStreamQuery(stream));
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

TEST_F(BlockingDeathTest, GraphsAreCapturedAndReplayed) {
  const auto child = [] {
    anvilStream_t stream = Start();
    anvilGraphPool_t pool;
    anvilGraph_t graph;
    int ran = 0;
    REQUIRE_OK(anvilGraphPoolCreate(&pool, 0));
    REQUIRE_OK(anvilStreamBeginCapture(stream, pool));
    REQUIRE_OK(Do(stream, [&ran] { ++ran; }));
    REQUIRE_OK(Submit(stream, [&ran] { return ran > 2 ? ANVIL_ERROR_SYSTEM : ANVIL_SUCCESS; }));
    REQUIRE_OK(anvilStreamEndCapture(stream, &graph));
    REQUIRE(ran == 0);
    REQUIRE_OK(anvilGraphLaunch(graph, stream));
    REQUIRE_OK(anvilGraphLaunch(graph, stream));
    REQUIRE(ran == 2);
    REQUIRE(anvilGraphLaunch(graph, stream) == ANVIL_ERROR_SYSTEM);
    REQUIRE_OK(anvilGraphDestroy(graph));
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

TEST(DelayDeathTest, CommandsStartLate) {
  const auto child = [] {
    UseOneSmallDevice();
    setenv("ANVIL_DEBUG_DELAY", "5000", 1);
    anvilStream_t stream;
    REQUIRE_OK(anvilStreamGetDefault(&stream, 0));
    std::vector<int> order;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) REQUIRE_OK(Do(stream, [&order, i] { order.push_back(i); }));
    REQUIRE_OK(anvilStreamSynchronize(stream));
    // 50 ms on average; the sequence is the same in every run.
    REQUIRE(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(20));
    for (int i = 0; i < 20; ++i) REQUIRE(order[static_cast<size_t>(i)] == i);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

}  // namespace
