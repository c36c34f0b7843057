// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <thread>
#include <vector>

#include "api_checks.h"
#include "stream_work.h"

namespace {

class Events : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(anvilStreamGetDefault(&stream_, 0));
    ASSERT_OK(anvilStreamCreate(&urgent_, 0, -1));
    ASSERT_OK(anvilEventCreate(&start_, ANVIL_EVENT_TIMING));
    ASSERT_OK(anvilEventCreate(&end_, ANVIL_EVENT_TIMING));
    ASSERT_OK(anvilEventCreate(&untimed_, ANVIL_EVENT_DEFAULT));
  }
  void TearDown() override {
    gate_->Open();
    EXPECT_OK(anvilDeviceSynchronize(0));
    EXPECT_OK(anvilStreamDestroy(urgent_));
    for (anvilEvent_t event : {start_, end_, untimed_}) EXPECT_OK(anvilEventDestroy(event));
  }

  anvilStream_t stream_ = nullptr, urgent_ = nullptr;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  anvilEvent_t start_ = nullptr, end_ = nullptr, untimed_ = nullptr;
};

TEST_F(Events, MeasureWhatLiesBetweenThem) {
  ASSERT_OK(anvilEventRecord(start_, stream_));
  ASSERT_OK(Do(stream_, [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }));
  ASSERT_OK(anvilEventRecord(end_, stream_));
  ASSERT_OK(anvilEventSynchronize(end_));
  EXPECT_OK(anvilEventQuery(start_));
  EXPECT_OK(anvilStreamQuery(stream_));  // the event is the last there is
  float milliseconds = 0;
  ASSERT_OK(anvilEventElapsedTime(&milliseconds, start_, end_));
  EXPECT_GE(milliseconds, 20.0f);
  float backwards = 0;
  ASSERT_OK(anvilEventElapsedTime(&backwards, end_, start_));
  EXPECT_EQ(backwards, -milliseconds);
  ASSERT_OK(anvilEventElapsedTime(&milliseconds, start_, start_));
  EXPECT_EQ(milliseconds, 0.0f);
}

TEST_F(Events, ThatWereNeverRecordedAreComplete) {
  EXPECT_OK(anvilEventQuery(untimed_));
  EXPECT_OK(anvilEventSynchronize(untimed_));
  EXPECT_OK(anvilStreamWaitEvent(stream_, untimed_));
  EXPECT_OK(anvilStreamSynchronize(stream_));
}

TEST_F(Events, AreReachedWhenWhatIsBeforeThemHasRun) {
  ASSERT_OK(WaitAt(stream_, gate_));
  ASSERT_OK(anvilEventRecord(start_, stream_));
  EXPECT_EQ(anvilEventQuery(start_), ANVIL_ERROR_NOT_READY);
  float milliseconds;
  EXPECT_FAILS(anvilEventElapsedTime(&milliseconds, start_, start_), ANVIL_ERROR_NOT_READY,
               "synchronize");
  std::thread waiter([this] { EXPECT_OK(anvilEventSynchronize(start_)); });
  gate_->Open();
  waiter.join();
  EXPECT_OK(anvilEventQuery(start_));
}

TEST_F(Events, HoldUpStreamsThatWaitForThem) {
  std::vector<int> order;
  ASSERT_OK(WaitAt(stream_, gate_));
  ASSERT_OK(Do(stream_, [&order] { order.push_back(1); }));
  ASSERT_OK(anvilEventRecord(untimed_, stream_));
  ASSERT_OK(Do(stream_, [&order] { order.push_back(3); }));
  ASSERT_OK(anvilStreamWaitEvent(urgent_, untimed_));  // else first: it is more urgent
  ASSERT_OK(Do(urgent_, [&order] { order.push_back(2); }));
  gate_->Open();
  ASSERT_OK(anvilDeviceSynchronize(0));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST_F(Events, RecordedAgainDoNotDisturbEarlierWaits) {
  const auto second_gate = std::make_shared<Gate>();
  bool ran = false;
  ASSERT_OK(WaitAt(stream_, gate_));
  ASSERT_OK(anvilEventRecord(untimed_, stream_));
  ASSERT_OK(anvilStreamWaitEvent(urgent_, untimed_));
  ASSERT_OK(Do(urgent_, [&ran] { ran = true; }));
  ASSERT_OK(anvilEventRecord(start_, urgent_));
  ASSERT_OK(anvilStreamWaitEvent(stream_, start_));
  ASSERT_OK(WaitAt(stream_, second_gate));
  ASSERT_OK(anvilEventRecord(untimed_, stream_));
  gate_->Open();
  ASSERT_OK(anvilStreamSynchronize(urgent_));  // only the first record is needed for that
  EXPECT_TRUE(ran);
  EXPECT_EQ(anvilEventQuery(untimed_), ANVIL_ERROR_NOT_READY);
  second_gate->Open();
  EXPECT_OK(anvilEventSynchronize(untimed_));
}

TEST_F(Events, MayBeDestroyedWhileTheyAreWaitedFor) {
  anvilEvent_t doomed;
  bool ran = false;
  ASSERT_OK(anvilEventCreate(&doomed, 0));
  ASSERT_OK(WaitAt(stream_, gate_));
  ASSERT_OK(anvilEventRecord(doomed, stream_));
  ASSERT_OK(anvilStreamWaitEvent(urgent_, doomed));
  ASSERT_OK(Do(urgent_, [&ran] { ran = true; }));
  ASSERT_OK(anvilEventDestroy(doomed));
  gate_->Open();
  ASSERT_OK(anvilStreamSynchronize(urgent_));
  EXPECT_TRUE(ran);
}

TEST_F(Events, OfAnotherDeviceCanBeWaitedFor) {
  if (DeviceCount() < 2) GTEST_SKIP() << "needs cores for two devices";
  anvilStream_t other;
  ASSERT_OK(anvilStreamGetDefault(&other, 1));
  int value = 0;  // the events are all that protects it
  for (int round = 0; round < 200; ++round) {
    const auto gate = std::make_shared<Gate>();
    ASSERT_OK(WaitAt(other, gate));
    ASSERT_OK(Do(other, [&value] { ++value; }));
    ASSERT_OK(anvilEventRecord(start_, other));
    ASSERT_OK(anvilStreamWaitEvent(stream_, start_));
    ASSERT_OK(Do(stream_, [&value] { value *= 2; }));
    ASSERT_OK(anvilEventRecord(end_, stream_));
    ASSERT_OK(anvilStreamWaitEvent(other, end_));
    ASSERT_OK(Do(other, [&value] { value -= 1; }));
    // Now and then the waiting executor sleeps already.
    if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    gate->Open();
    ASSERT_OK(anvilStreamSynchronize(other));
    ASSERT_EQ(value, 1);
    value = 0;
  }
}

TEST_F(Events, ElapsedTimeNeedsTimingAndARecord) {
  float milliseconds;
  EXPECT_FAILS(anvilEventElapsedTime(&milliseconds, start_, end_), ANVIL_ERROR_INVALID_VALUE,
               "recorded");
  ASSERT_OK(anvilEventRecord(start_, stream_));
  ASSERT_OK(anvilEventSynchronize(start_));
  EXPECT_FAILS(anvilEventElapsedTime(&milliseconds, start_, end_), ANVIL_ERROR_INVALID_VALUE,
               "recorded");
  ASSERT_OK(anvilEventRecord(untimed_, stream_));
  EXPECT_FAILS(anvilEventElapsedTime(&milliseconds, start_, untimed_), ANVIL_ERROR_INVALID_VALUE,
               "enable_timing");
  EXPECT_FAILS(anvilEventElapsedTime(nullptr, start_, start_), ANVIL_ERROR_INVALID_VALUE,
               "milliseconds");
  EXPECT_FAILS(anvilEventElapsedTime(&milliseconds, start_, nullptr), ANVIL_ERROR_INVALID_VALUE,
               "event");
}

TEST_F(Events, MistakesAreErrors) {
  anvilEvent_t event;
  EXPECT_FAILS(anvilEventCreate(&event, 6), ANVIL_ERROR_INVALID_VALUE, "flags");
  EXPECT_FAILS(anvilEventCreate(nullptr, 0), ANVIL_ERROR_INVALID_VALUE, "event");
  EXPECT_FAILS(anvilEventDestroy(nullptr), ANVIL_ERROR_INVALID_VALUE, "event");
  EXPECT_FAILS(anvilEventRecord(nullptr, stream_), ANVIL_ERROR_INVALID_VALUE, "event");
  EXPECT_FAILS(anvilEventRecord(start_, nullptr), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_FAILS(anvilStreamWaitEvent(nullptr, start_), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_FAILS(anvilStreamWaitEvent(stream_, nullptr), ANVIL_ERROR_INVALID_VALUE, "event");
}

}  // namespace
