// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <thread>

#include "api_checks.h"

namespace {

class Events : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(anvilStreamGetDefault(&stream_, 0));
    ASSERT_OK(anvilEventCreate(&start_, ANVIL_EVENT_TIMING));
    ASSERT_OK(anvilEventCreate(&end_, ANVIL_EVENT_TIMING));
    ASSERT_OK(anvilEventCreate(&untimed_, ANVIL_EVENT_DEFAULT));
  }
  void TearDown() override {
    for (anvilEvent_t event : {start_, end_, untimed_}) EXPECT_OK(anvilEventDestroy(event));
  }

  anvilStream_t stream_ = nullptr;
  anvilEvent_t start_ = nullptr, end_ = nullptr, untimed_ = nullptr;
};

TEST_F(Events, MeasureWhatLiesBetweenThem) {
  ASSERT_OK(anvilEventRecord(start_, stream_));
  const anvilCommand sleep{"sleep",
                           [](void*) {
                             std::this_thread::sleep_for(std::chrono::milliseconds(20));
                             return ANVIL_SUCCESS;
                           },
                           nullptr, nullptr};
  ASSERT_OK(anvilStreamSubmit(stream_, &sleep));
  ASSERT_OK(anvilEventRecord(end_, stream_));
  float milliseconds = 0;
  ASSERT_OK(anvilEventElapsedTime(&milliseconds, start_, end_));
  EXPECT_GE(milliseconds, 20.0f);
  float backwards = 0;
  ASSERT_OK(anvilEventElapsedTime(&backwards, end_, start_));
  EXPECT_EQ(backwards, -milliseconds);
  ASSERT_OK(anvilEventElapsedTime(&milliseconds, start_, start_));
  EXPECT_EQ(milliseconds, 0.0f);
}

TEST_F(Events, AreCompleteBeforeAndAfterTheyAreRecorded) {
  EXPECT_OK(anvilEventQuery(untimed_));
  EXPECT_OK(anvilEventSynchronize(untimed_));
  EXPECT_OK(anvilStreamWaitEvent(stream_, untimed_));
  EXPECT_OK(anvilEventRecord(untimed_, stream_));
  EXPECT_OK(anvilEventQuery(untimed_));
  EXPECT_OK(anvilEventSynchronize(untimed_));
  EXPECT_OK(anvilStreamWaitEvent(stream_, untimed_));
}

TEST_F(Events, OfAnotherDeviceCanBeWaitedFor) {
  if (DeviceCount() < 2) GTEST_SKIP() << "needs cores for two devices";
  anvilStream_t other;
  ASSERT_OK(anvilStreamGetDefault(&other, 1));
  ASSERT_OK(anvilEventRecord(start_, other));
  EXPECT_OK(anvilStreamWaitEvent(stream_, start_));
}

TEST_F(Events, ElapsedTimeNeedsTimingAndARecord) {
  float milliseconds;
  EXPECT_FAILS(anvilEventElapsedTime(&milliseconds, start_, end_), ANVIL_ERROR_INVALID_VALUE,
               "recorded");
  ASSERT_OK(anvilEventRecord(start_, stream_));
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
