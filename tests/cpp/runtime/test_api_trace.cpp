// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "graph_fixture.h"

namespace {

using std::chrono::milliseconds;

uint64_t Now() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

class Trace : public Graphs {
 protected:
  void TearDown() override {
    EXPECT_OK(anvilTraceStop());
    Graphs::TearDown();
  }
  // Everything that is there.
  std::vector<anvilTraceSpan> Take() {
    size_t count = 0;
    EXPECT_OK(anvilTraceTake(nullptr, 0, &count, &dropped_));
    std::vector<anvilTraceSpan> spans(count);
    EXPECT_OK(anvilTraceTake(spans.data(), spans.size(), &count, &dropped_));
    return spans;
  }
  // Has run when this returns, its span taken.
  void Run(const char* name, int time = 0) {
    ASSERT_OK(Submit(
        stream_,
        [time] {
          if (time > 0) std::this_thread::sleep_for(milliseconds(time));
          return ANVIL_SUCCESS;
        },
        name));
    ASSERT_OK(anvilStreamSynchronize(stream_));
  }

  uint64_t dropped_ = 0;
};

TEST_F(Trace, KnowsNameStreamAndTimeOfEachCommand) {
  ASSERT_OK(anvilTraceStart(100));
  const uint64_t before = Now();
  Run("first", 3);
  ASSERT_OK(Submit(side_, [] { return ANVIL_SUCCESS; }, "second"));
  ASSERT_OK(anvilStreamSynchronize(side_));
  const uint64_t after = Now();
  const std::vector<anvilTraceSpan> spans = Take();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_STREQ(spans[0].name, "first");
  EXPECT_EQ(spans[0].stream, anvilStreamId(stream_));
  EXPECT_STREQ(spans[1].name, "second");
  EXPECT_EQ(spans[1].stream, anvilStreamId(side_));
  EXPECT_GE(spans[0].begin_nanoseconds, before);
  EXPECT_GE(spans[0].end_nanoseconds - spans[0].begin_nanoseconds, 3'000'000u);
  EXPECT_GE(spans[1].begin_nanoseconds, spans[0].end_nanoseconds);
  EXPECT_LE(spans[1].end_nanoseconds, after);
  for (const anvilTraceSpan& span : spans) {
    EXPECT_EQ(span.device, 0);
    EXPECT_EQ(span.depth, 0u);
  }
  EXPECT_EQ(dropped_, 0u);
  EXPECT_TRUE(Take().empty());
}

TEST_F(Trace, HasTheNodesOfAGraphInsideIt) {
  Begin();
  ASSERT_OK(Submit(stream_, [] { return ANVIL_SUCCESS; }, "node 1"));
  ASSERT_OK(Submit(stream_, [] { return ANVIL_SUCCESS; }, "node 2"));
  anvilGraph_t graph = End();
  ASSERT_OK(anvilTraceStart(100));
  Replay(graph);
  Run("alone");
  const std::vector<anvilTraceSpan> spans = Take();
  ASSERT_EQ(spans.size(), 4u);
  const char* names[] = {"node 1", "node 2", "graph", "alone"};
  const uint32_t depths[] = {1, 1, 0, 0};
  for (int i = 0; i < 4; ++i) {
    EXPECT_STREQ(spans[i].name, names[i]);
    EXPECT_EQ(spans[i].depth, depths[i]);
  }
  EXPECT_LE(spans[2].begin_nanoseconds, spans[0].begin_nanoseconds);
  EXPECT_LE(spans[0].end_nanoseconds, spans[1].begin_nanoseconds);
  EXPECT_LE(spans[1].end_nanoseconds, spans[2].end_nanoseconds);
  EXPECT_OK(anvilGraphDestroy(graph));
}

TEST_F(Trace, HasWhatFailedToo) {
  ASSERT_OK(anvilTraceStart(100));
  ASSERT_OK(Submit(stream_, [] { return ANVIL_ERROR_COMMAND; }, "failing"));
  EXPECT_EQ(anvilStreamSynchronize(stream_), ANVIL_ERROR_COMMAND);
  Run("next");
  const std::vector<anvilTraceSpan> spans = Take();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_STREQ(spans[0].name, "failing");
  EXPECT_EQ(spans[1].depth, 0u);
}

TEST_F(Trace, TakesNothingWhileItIsOff) {
  Run("before");
  ASSERT_OK(anvilTraceStart(100));
  ASSERT_OK(anvilTraceStop());
  Run("after");
  EXPECT_TRUE(Take().empty());
}

TEST_F(Trace, CountsWhatThereIsNoRoomFor) {
  ASSERT_OK(anvilTraceStart(2));
  for (const char* name : {"a", "b", "c", "d", "e"}) Run(name);
  const std::vector<anvilTraceSpan> spans = Take();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_STREQ(spans[1].name, "b");
  EXPECT_EQ(dropped_, 3u);
  ASSERT_OK(anvilTraceStart(2));
  EXPECT_TRUE(Take().empty());
  EXPECT_EQ(dropped_, 0u);
}

TEST_F(Trace, IsTakenInParts) {
  ASSERT_OK(anvilTraceStart(10));
  for (const char* name : {"a", "b", "c"}) Run(name);
  anvilTraceSpan two[2];
  size_t count = 0;
  ASSERT_OK(anvilTraceTake(two, 2, &count, &dropped_));
  EXPECT_EQ(count, 3u);
  EXPECT_STREQ(two[1].name, "b");
  const std::vector<anvilTraceSpan> rest = Take();
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_STREQ(rest[0].name, "c");
}

TEST_F(Trace, CutsNamesAndNamesTheUnnamed) {
  const std::string name(200, 'x');
  ASSERT_OK(anvilTraceStart(10));
  Run(name.c_str());
  Run(nullptr);
  const std::vector<anvilTraceSpan> spans = Take();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].name, std::string(sizeof(spans[0].name) - 1, 'x'));
  EXPECT_STREQ(spans[1].name, "unnamed");
}

TEST_F(Trace, IsStartedStoppedAndTakenWhileCommandsRun) {
  std::vector<std::thread> submitters;
  std::atomic<bool> enough{false};
  for (anvilStream_t stream : {stream_, side_}) {
    submitters.emplace_back([&enough, stream] {
      while (!enough) {
        EXPECT_OK(Submit(stream, [] { return ANVIL_SUCCESS; }, "busy"));
        EXPECT_OK(anvilStreamSynchronize(stream));
      }
    });
  }
  size_t seen = 0;
  while (seen < 1000) {
    ASSERT_OK(anvilTraceStart(50));
    std::this_thread::yield();
    for (const anvilTraceSpan& span : Take()) {
      EXPECT_STREQ(span.name, "busy");
      ++seen;
    }
    ASSERT_OK(anvilTraceStop());
  }
  enough = true;
  for (std::thread& submitter : submitters) submitter.join();
}

TEST_F(Trace, RefusesNull) {
  size_t count = 0;
  EXPECT_FAILS(anvilTraceTake(nullptr, 0, nullptr, &dropped_), ANVIL_ERROR_INVALID_VALUE, "count");
  EXPECT_FAILS(anvilTraceTake(nullptr, 0, &count, nullptr), ANVIL_ERROR_INVALID_VALUE, "dropped");
  EXPECT_FAILS(anvilTraceTake(nullptr, 1, &count, &dropped_), ANVIL_ERROR_INVALID_VALUE, "spans");
}

}  // namespace
