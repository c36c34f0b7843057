// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "api_checks.h"
#include "stream_work.h"

namespace {

class Streams : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(anvilStreamCreate(&stream_, 0, 0));
    ASSERT_OK(anvilStreamCreate(&other_, 0, 0));
  }
  void TearDown() override {
    gate_->Open();
    anvilDeviceSynchronize(0);
    EXPECT_OK(anvilStreamDestroy(stream_));
    EXPECT_OK(anvilStreamDestroy(other_));
  }

  anvilStream_t stream_ = nullptr, other_ = nullptr;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
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

TEST_F(Streams, RunCommandsInOrderAfterSubmitHasReturned) {
  std::vector<int> order;
  ASSERT_OK(WaitAt(stream_, gate_));
  for (int i = 0; i < 1000; ++i) ASSERT_OK(Do(stream_, [&order, i] { order.push_back(i); }));
  EXPECT_EQ(anvilStreamIsBusy(stream_), 1);
  EXPECT_EQ(anvilStreamQuery(stream_), ANVIL_ERROR_NOT_READY);
  gate_->Open();
  ASSERT_OK(anvilStreamSynchronize(stream_));
  EXPECT_EQ(anvilStreamIsBusy(stream_), 0);
  EXPECT_OK(anvilStreamQuery(stream_));
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST_F(Streams, RunTheMostUrgentCommandThenTheOldest) {
  anvilStream_t urgent;
  ASSERT_OK(anvilStreamCreate(&urgent, 0, -1));
  std::vector<int> order;
  const auto note = [&order](anvilStream_t stream, int number) {
    ASSERT_OK(Do(stream, [&order, number] { order.push_back(number); }));
  };
  ASSERT_OK(WaitAt(stream_, gate_));
  note(stream_, 3);
  note(other_, 4);
  note(other_, 5);
  note(stream_, 6);
  note(urgent, 1);
  note(urgent, 2);
  gate_->Open();
  ASSERT_OK(anvilDeviceSynchronize(0));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4, 5, 6}));
  EXPECT_OK(anvilStreamDestroy(urgent));
}

TEST_F(Streams, ReportTheFirstErrorAtTheNextWait) {
  EXPECT_OK(Submit(stream_, [] { return ANVIL_ERROR_OUT_OF_MEMORY; }, "aten::foo"));
  EXPECT_OK(Submit(stream_, [] { return ANVIL_ERROR_INVALID_VALUE; }));
  bool ran = false;
  EXPECT_OK(Do(stream_, [&ran] { ran = true; }));  // later commands still run
  EXPECT_OK(anvilStreamSynchronize(other_));       // others know nothing of it
  EXPECT_FAILS(anvilStreamSynchronize(stream_), ANVIL_ERROR_OUT_OF_MEMORY,
               "Command 'aten::foo' failed: ANVIL_ERROR_OUT_OF_MEMORY");
  EXPECT_TRUE(ran);
  EXPECT_OK(anvilStreamSynchronize(stream_));
}

TEST_F(Streams, AQueryReportsAnErrorToo) {
  EXPECT_OK(Submit(stream_, [] { return ANVIL_ERROR_SYSTEM; }));
  anvilError_t status = ANVIL_ERROR_NOT_READY;
  while (status == ANVIL_ERROR_NOT_READY) status = anvilStreamQuery(stream_);
  EXPECT_FAILS(status, ANVIL_ERROR_SYSTEM, "'work'");
  EXPECT_OK(anvilStreamQuery(stream_));
}

TEST_F(Streams, KeepTheCommandsOwnWords) {
  EXPECT_OK(Submit(stream_, [] { return anvilSetDevice(77); }));
  EXPECT_FAILS(anvilStreamSynchronize(stream_), ANVIL_ERROR_INVALID_DEVICE, "no device 77");
  EXPECT_OK(Submit(stream_, []() -> anvilError_t { throw std::runtime_error("thrown words"); }));
  EXPECT_FAILS(anvilStreamSynchronize(stream_), ANVIL_ERROR_COMMAND, "thrown words");
  EXPECT_OK(Submit(stream_, []() -> anvilError_t { throw 5; }));
  EXPECT_FAILS(anvilStreamSynchronize(stream_), ANVIL_ERROR_COMMAND, "exception");
}

TEST_F(Streams, DestroyedOnesStillRunWhatTheyHold) {
  anvilStream_t doomed;
  ASSERT_OK(anvilStreamCreate(&doomed, 0, 0));
  std::atomic<int> ran{0};
  ASSERT_OK(WaitAt(doomed, gate_));
  for (int i = 0; i < 10; ++i) ASSERT_OK(Do(doomed, [&ran] { ++ran; }));
  ASSERT_OK(Submit(doomed, [] { return ANVIL_ERROR_SYSTEM; }));
  ASSERT_OK(anvilStreamDestroy(doomed));
  EXPECT_EQ(ran, 0);
  gate_->Open();
  EXPECT_FAILS(anvilDeviceSynchronize(0), ANVIL_ERROR_SYSTEM, "'work'");
  EXPECT_EQ(ran, 10);
  EXPECT_OK(anvilDeviceSynchronize(0));
}

TEST_F(Streams, DeviceSynchronizeCollectsErrorsOfAllStreams) {
  EXPECT_OK(Submit(stream_, [] { return ANVIL_ERROR_COMMAND; }));
  EXPECT_EQ(anvilDeviceSynchronize(0), ANVIL_ERROR_COMMAND);
  EXPECT_OK(anvilDeviceSynchronize(0));
  EXPECT_OK(anvilStreamSynchronize(stream_));
}

TEST_F(Streams, CommandsAreDestroyedOnceAndBeforeWaitersGoOn) {
  std::atomic<int> destroyed{0};
  const anvilCommand command{"count",
                             [](void*) { return ANVIL_SUCCESS; },
                             [](void* arg) { ++*static_cast<std::atomic<int>*>(arg); },
                             &destroyed,
                             nullptr,
                             0};
  for (int i = 1; i <= 1000; ++i) {
    ASSERT_OK(anvilStreamSubmit(stream_, &command));
    if (i % 10 != 0) continue;
    ASSERT_OK(anvilStreamSynchronize(stream_));
    ASSERT_EQ(destroyed, i);
  }
}

TEST_F(Streams, RefusedCommandsAreDestroyedToo) {
  int destroyed = 0;
  anvilCommand command{"refused",
                       [](void*) { return ANVIL_SUCCESS; },
                       [](void* arg) { ++*static_cast<int*>(arg); },
                       &destroyed,
                       nullptr,
                       0};
  EXPECT_FAILS(anvilStreamSubmit(nullptr, &command), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_EQ(destroyed, 1);
  command.run = nullptr;
  EXPECT_FAILS(anvilStreamSubmit(stream_, &command), ANVIL_ERROR_INVALID_VALUE, "run");
  EXPECT_EQ(destroyed, 2);
  EXPECT_FAILS(anvilStreamSubmit(stream_, nullptr), ANVIL_ERROR_INVALID_VALUE, "command");
}

TEST_F(Streams, CommandsMayUseTheDeviceThemselves) {
  anvilEvent_t event;
  ASSERT_OK(anvilEventCreate(&event, 0));
  int inner = 0;
  ASSERT_OK(WaitAt(other_, gate_));
  ASSERT_OK(Do(stream_, [&] {
    EXPECT_EQ(anvilStreamIsBusy(stream_), 0);
    EXPECT_OK(Do(stream_, [&inner] { ++inner; }));
    EXPECT_OK(Do(other_, [&inner] { ++inner; }));
    EXPECT_EQ(inner, 2);  // part of this command: done at once
    EXPECT_EQ(Submit(other_, [] { return ANVIL_ERROR_SYSTEM; }), ANVIL_ERROR_SYSTEM);
    EXPECT_OK(anvilStreamQuery(stream_));
    EXPECT_OK(anvilStreamSynchronize(stream_));
    EXPECT_OK(anvilStreamSynchronize(other_));
    EXPECT_OK(anvilEventRecord(event, stream_));
    EXPECT_OK(anvilEventSynchronize(event));
    EXPECT_OK(anvilStreamWaitEvent(other_, event));
    EXPECT_OK(anvilDeviceSynchronize(0));
    EXPECT_FAILS(anvilStreamDestroy(stream_), ANVIL_ERROR_INVALID_VALUE, "runs on");
    anvilStream_t made;
    EXPECT_OK(anvilStreamCreate(&made, 0, 0));
    EXPECT_OK(anvilStreamDestroy(made));
  }));
  gate_->Open();
  ASSERT_OK(anvilDeviceSynchronize(0));
  EXPECT_EQ(inner, 2);
  EXPECT_OK(anvilEventDestroy(event));
}

TEST_F(Streams, CommandsCannotWaitForTheirOwnDevice) {
  anvilEvent_t event;
  ASSERT_OK(anvilEventCreate(&event, 0));
  ASSERT_OK(WaitAt(stream_, gate_));
  ASSERT_OK(Do(stream_, [&] {
    EXPECT_EQ(anvilStreamIsBusy(other_), 1);
    EXPECT_FAILS(anvilStreamSynchronize(other_), ANVIL_ERROR_NOT_READY, "inside a command");
    EXPECT_FAILS(anvilEventSynchronize(event), ANVIL_ERROR_NOT_READY, "inside a command");
    EXPECT_FAILS(anvilStreamWaitEvent(stream_, event), ANVIL_ERROR_NOT_READY, "inside a command");
    EXPECT_OK(anvilDeviceSynchronize(0));  // nothing that this command needs is missing
  }));
  ASSERT_OK(Do(other_, [] {}));
  ASSERT_OK(anvilEventRecord(event, other_));
  gate_->Open();
  ASSERT_OK(anvilDeviceSynchronize(0));
  EXPECT_OK(anvilEventDestroy(event));
}

TEST_F(Streams, TakeSubmissionsOfManyThreads) {
  int64_t unguarded = 0;  // the stream's order is all that protects it
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        EXPECT_OK(Do(stream_, [&unguarded] { ++unguarded; }));
        if (i % 100 != 0) continue;
        EXPECT_OK(anvilStreamSynchronize(stream_));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_OK(anvilStreamSynchronize(stream_));
  EXPECT_EQ(unguarded, 8000);
}

TEST_F(Streams, AreWaitedForByManyThreadsAtOnce) {
  std::atomic<int> ran{0};
  ASSERT_OK(WaitAt(stream_, gate_));
  ASSERT_OK(Do(stream_, [&ran] { ++ran; }));
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i) {
    waiters.emplace_back([&] {
      EXPECT_OK(anvilStreamSynchronize(stream_));
      EXPECT_EQ(ran, 1);
    });
  }
  gate_->Open();
  for (std::thread& waiter : waiters) waiter.join();
}

TEST_F(Streams, WakeTheirExecutorAfterALongPause) {
  for (int i = 0; i < 20; ++i) {
    bool ran = false;
    ASSERT_OK(Do(stream_, [&ran] { ran = true; }));
    ASSERT_OK(anvilStreamSynchronize(stream_));
    ASSERT_TRUE(ran);
    std::this_thread::sleep_for(std::chrono::microseconds(100 * i));
  }
}

TEST(StreamArguments, NullIsNamed) {
  EXPECT_FAILS(anvilStreamCreate(nullptr, 0, 0), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_FAILS(anvilStreamGetDefault(nullptr, 0), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_FAILS(anvilStreamDestroy(nullptr), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_FAILS(anvilStreamQuery(nullptr), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_FAILS(anvilStreamSynchronize(nullptr), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_EQ(anvilStreamIsBusy(nullptr), 0);
  EXPECT_EQ(anvilStreamWantsAccesses(nullptr), 0);
}

}  // namespace
