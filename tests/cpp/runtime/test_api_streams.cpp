// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "api_checks.h"

namespace {

// A command made of closures; counts how often it was destroyed.
struct Work {
  std::function<anvilError_t()> body;
  std::atomic<int> destroyed{0};

  anvilCommand command(const char* name = "work") {
    return {name, [](void* arg) { return static_cast<Work*>(arg)->body(); },
            [](void* arg) { ++static_cast<Work*>(arg)->destroyed; }, this};
  }
};

anvilError_t Submit(anvilStream_t stream, std::function<anvilError_t()> body) {
  Work work{std::move(body)};
  const anvilCommand command = work.command();
  const anvilError_t status = anvilStreamSubmit(stream, &command);
  EXPECT_EQ(work.destroyed, 1);
  return status;
}

class Streams : public testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(anvilStreamCreate(&stream_, 0, -1)); }
  void TearDown() override {
    anvilStreamSynchronize(stream_);
    EXPECT_OK(anvilStreamDestroy(stream_));
  }

  anvilStream_t stream_ = nullptr;
};

TEST(StreamIds, CountFromTheDefaultStreamOnEachDevice) {
  for (int device = 0; device < DeviceCount(); ++device) {
    anvilStream_t zero, again, one, two;
    ASSERT_OK(anvilStreamGetDefault(&zero, device));
    ASSERT_OK(anvilStreamGetDefault(&again, device));
    EXPECT_EQ(zero, again);
    EXPECT_EQ(anvilStreamId(zero), 0u);
    EXPECT_EQ(anvilStreamDevice(zero), device);
    EXPECT_EQ(anvilStreamPriority(zero), 0);
    ASSERT_OK(anvilStreamCreate(&one, device, 0));
    ASSERT_OK(anvilStreamCreate(&two, device, -3));
    EXPECT_GE(anvilStreamId(one), 1u);
    EXPECT_EQ(anvilStreamId(two), anvilStreamId(one) + 1);
    EXPECT_EQ(anvilStreamPriority(two), -3);
    EXPECT_EQ(anvilStreamDevice(two), device);
    EXPECT_OK(anvilStreamDestroy(one));
    EXPECT_OK(anvilStreamDestroy(two));
    EXPECT_FAILS(anvilStreamDestroy(zero), ANVIL_ERROR_INVALID_VALUE, "default stream");
  }
}

TEST_F(Streams, RunCommandsInOrderBeforeSubmitReturns) {
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) {
    EXPECT_OK(Submit(stream_, [&order, i] {
      order.push_back(i);
      return ANVIL_SUCCESS;
    }));
    ASSERT_EQ(order.size(), static_cast<size_t>(i + 1));
    ASSERT_EQ(order.back(), i);
  }
  EXPECT_OK(anvilStreamQuery(stream_));
  EXPECT_OK(anvilStreamSynchronize(stream_));
}

TEST_F(Streams, ReportTheFirstErrorOnceMore) {
  EXPECT_EQ(Submit(stream_, [] { return ANVIL_ERROR_INVALID_VALUE; }), ANVIL_ERROR_INVALID_VALUE);
  EXPECT_EQ(Submit(stream_, [] { return ANVIL_ERROR_OUT_OF_MEMORY; }), ANVIL_ERROR_OUT_OF_MEMORY);
  EXPECT_OK(Submit(stream_, [] { return ANVIL_SUCCESS; }));  // later commands still run
  EXPECT_FAILS(anvilStreamSynchronize(stream_), ANVIL_ERROR_INVALID_VALUE, "Command 'work' failed");
  EXPECT_OK(anvilStreamSynchronize(stream_));
}

TEST_F(Streams, KeepTheCommandsOwnWords) {
  EXPECT_EQ(Submit(stream_, [] { return anvilSetDevice(77); }), ANVIL_ERROR_INVALID_DEVICE);
  EXPECT_FAILS(anvilStreamSynchronize(stream_), ANVIL_ERROR_INVALID_DEVICE, "no device 77");
  EXPECT_EQ(Submit(stream_, []() -> anvilError_t { throw std::runtime_error("thrown words"); }),
            ANVIL_ERROR_COMMAND);
  EXPECT_FAILS(anvilStreamSynchronize(stream_), ANVIL_ERROR_COMMAND, "thrown words");
  EXPECT_EQ(Submit(stream_, []() -> anvilError_t { throw 5; }), ANVIL_ERROR_COMMAND);
  EXPECT_FAILS(anvilStreamSynchronize(stream_), ANVIL_ERROR_COMMAND, "exception");
}

TEST_F(Streams, DeviceSynchronizeCollectsErrorsOfAllStreams) {
  anvilStream_t doomed;
  ASSERT_OK(anvilStreamCreate(&doomed, 0, 0));
  EXPECT_EQ(Submit(doomed, [] { return ANVIL_ERROR_SYSTEM; }), ANVIL_ERROR_SYSTEM);
  EXPECT_OK(anvilStreamDestroy(doomed));  // nobody waited for it
  EXPECT_FAILS(anvilDeviceSynchronize(0), ANVIL_ERROR_SYSTEM, "'work'");
  EXPECT_EQ(Submit(stream_, [] { return ANVIL_ERROR_COMMAND; }), ANVIL_ERROR_COMMAND);
  EXPECT_EQ(anvilDeviceSynchronize(0), ANVIL_ERROR_COMMAND);
  EXPECT_OK(anvilDeviceSynchronize(0));
  EXPECT_OK(anvilStreamSynchronize(stream_));
}

TEST_F(Streams, RefusedCommandsAreDestroyedToo) {
  Work work{[] { return ANVIL_SUCCESS; }};
  anvilCommand command = work.command();
  EXPECT_FAILS(anvilStreamSubmit(nullptr, &command), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_EQ(work.destroyed, 1);
  command.run = nullptr;
  EXPECT_FAILS(anvilStreamSubmit(stream_, &command), ANVIL_ERROR_INVALID_VALUE, "run");
  EXPECT_EQ(work.destroyed, 2);
  EXPECT_FAILS(anvilStreamSubmit(stream_, nullptr), ANVIL_ERROR_INVALID_VALUE, "command");
  command = {"bare", [](void*) { return ANVIL_SUCCESS; }, nullptr, nullptr};
  EXPECT_OK(anvilStreamSubmit(stream_, &command));
}

TEST_F(Streams, CommandsMayUseTheDeviceThemselves) {
  anvilStream_t other;
  ASSERT_OK(anvilStreamCreate(&other, 0, 0));
  int inner = 0;
  EXPECT_OK(Submit(stream_, [&] {
    for (anvilStream_t target : {stream_, other}) {
      EXPECT_OK(Submit(target, [&inner] {
        ++inner;
        return ANVIL_SUCCESS;
      }));
    }
    EXPECT_OK(anvilStreamQuery(stream_));
    EXPECT_OK(anvilStreamSynchronize(stream_));
    EXPECT_OK(anvilDeviceSynchronize(0));
    EXPECT_FAILS(anvilStreamDestroy(stream_), ANVIL_ERROR_INVALID_VALUE, "runs on");
    anvilStream_t made;
    EXPECT_OK(anvilStreamCreate(&made, 0, 0));
    EXPECT_OK(anvilStreamDestroy(made));
    return ANVIL_SUCCESS;
  }));
  EXPECT_EQ(inner, 2);
  EXPECT_OK(anvilStreamDestroy(other));
}

TEST_F(Streams, ThreadsTakeTurns) {
  int64_t unguarded = 0;  // the stream's order is all that protects it
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        EXPECT_OK(Submit(stream_, [&unguarded] {
          ++unguarded;
          return ANVIL_SUCCESS;
        }));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(unguarded, 8000);
}

TEST_F(Streams, AreNotReadyWhileACommandRuns) {
  std::atomic<bool> running{false}, finish{false};
  std::thread submitter([&] {
    EXPECT_OK(Submit(stream_, [&] {
      running = true;
      while (!finish) std::this_thread::yield();
      return ANVIL_SUCCESS;
    }));
  });
  while (!running) std::this_thread::yield();
  EXPECT_EQ(anvilStreamQuery(stream_), ANVIL_ERROR_NOT_READY);
  finish = true;
  EXPECT_OK(anvilStreamSynchronize(stream_));
  EXPECT_OK(anvilStreamQuery(stream_));
  submitter.join();
}

TEST(StreamArguments, NullIsNamed) {
  EXPECT_FAILS(anvilStreamCreate(nullptr, 0, 0), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_FAILS(anvilStreamGetDefault(nullptr, 0), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_FAILS(anvilStreamDestroy(nullptr), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_FAILS(anvilStreamQuery(nullptr), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_FAILS(anvilStreamSynchronize(nullptr), ANVIL_ERROR_INVALID_VALUE, "stream");
}

}  // namespace
