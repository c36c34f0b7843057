// SPDX-License-Identifier: Apache-2.0
// Captures that cannot become a graph.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "graph_fixture.h"

namespace {

class Captures : public Graphs {};

// Something that cannot be recorded makes the capture fail, with the words of the call.
TEST_F(Captures, FailWhenTheHostWaitsForACapture) {
  const std::vector<std::function<anvilError_t()>> waits = {
      [this] { return anvilStreamSynchronize(stream_); },
      [this] { return anvilStreamQuery(stream_); },
      [this] { return anvilDeviceSynchronize(0); },
      [this] { return anvilStreamDestroy(stream_); },
      [this] { return anvilEventSynchronize(event_); },
      [this] { return anvilEventQuery(event_); },
      [this] {
        float milliseconds;
        return anvilEventElapsedTime(&milliseconds, event_, event_);
      },
  };
  for (const auto& wait : waits) {
    const auto alive = std::make_shared<int>(0);
    Begin();
    ASSERT_OK(anvilEventRecord(event_, stream_));
    ASSERT_OK(Do(stream_, [alive] {}));
    EXPECT_FAILS(wait(), ANVIL_ERROR_CAPTURE, "captur");
    const std::string words = anvilGetLastErrorMessage();
    EXPECT_FAILS(Do(stream_, [alive] {}), ANVIL_ERROR_CAPTURE, words);
    EndFails(words);
    EXPECT_EQ(alive.use_count(), 1);  // everything recorded or refused is released
    EXPECT_OK(anvilStreamSynchronize(stream_));
  }
}

TEST_F(Captures, FailOnRequestWithTheFirstReason) {
  Begin();
  JoinSide();
  EXPECT_FAILS(anvilStreamFailCapture(side_, "the host reads a value"), ANVIL_ERROR_CAPTURE,
               "the host reads a value");
  EXPECT_FAILS(anvilStreamFailCapture(stream_, "later"), ANVIL_ERROR_CAPTURE, "later");
  EndFails("the host reads a value");
  EXPECT_FAILS(anvilStreamFailCapture(stream_, "no"), ANVIL_ERROR_INVALID_VALUE, "not being");
}

TEST_F(Captures, CannotWaitForWhatIsPendingOutside) {
  ASSERT_OK(WaitAt(side_, gate_));
  ASSERT_OK(anvilEventRecord(event_, side_));
  Begin();
  EXPECT_FAILS(anvilStreamWaitEvent(stream_, event_), ANVIL_ERROR_CAPTURE, "recorded outside");
  EndFails("recorded outside");
  gate_->Open();
  ASSERT_OK(anvilEventSynchronize(event_));
  Begin();
  EXPECT_OK(anvilStreamWaitEvent(stream_, event_));  // nothing is left to wait for
  EXPECT_OK(anvilGraphDestroy(End()));
}

TEST_F(Captures, MarkNothingOutsideThemselves) {
  Begin();
  ASSERT_OK(anvilEventRecord(event_, stream_));
  EXPECT_OK(anvilGraphDestroy(End()));
  EXPECT_FAILS(anvilStreamWaitEvent(side_, event_), ANVIL_ERROR_CAPTURE, "Record it again");
  EXPECT_FAILS(anvilEventSynchronize(event_), ANVIL_ERROR_CAPTURE, "Record it again");
  ASSERT_OK(anvilEventRecord(event_, stream_));
  EXPECT_OK(anvilEventSynchronize(event_));
}

TEST_F(Captures, OfTwoCapturesDoNotMix) {
  anvilStream_t third;
  anvilGraph_t graph = nullptr;
  ASSERT_OK(anvilStreamCreate(&third, 0, 0));
  Begin();
  ASSERT_OK(anvilEventRecord(event_, stream_));
  ASSERT_OK(anvilStreamBeginCapture(third, pool_));
  EXPECT_FAILS(anvilStreamWaitEvent(third, event_), ANVIL_ERROR_CAPTURE, "another capture");
  EXPECT_FAILS(anvilStreamEndCapture(third, &graph), ANVIL_ERROR_CAPTURE, "another capture");
  EndFails("another capture");
  EXPECT_OK(anvilStreamDestroy(third));
}

TEST_F(Captures, EndWhereTheyBegan) {
  anvilGraph_t graph = nullptr;
  EXPECT_FAILS(anvilStreamEndCapture(stream_, &graph), ANVIL_ERROR_CAPTURE, "not being captured");
  Begin();
  EXPECT_FAILS(anvilStreamBeginCapture(stream_, pool_), ANVIL_ERROR_CAPTURE, "already");
  JoinSide();
  EXPECT_FAILS(anvilStreamEndCapture(side_, &graph), ANVIL_ERROR_CAPTURE, "where it began");
  EndFails("only joined");
}

}  // namespace
