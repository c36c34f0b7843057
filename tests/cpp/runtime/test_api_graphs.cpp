// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "graph_fixture.h"

namespace {

TEST_F(Graphs, RunNothingUntilTheyAreLaunched) {
  std::vector<int> order;
  Begin();
  EXPECT_EQ(anvilStreamIsCapturing(stream_), 1);
  EXPECT_EQ(anvilStreamWantsAccesses(stream_), 1);
  for (int i = 0; i < 3; ++i) ASSERT_OK(Do(stream_, [&order, i] { order.push_back(i); }));
  EXPECT_EQ(anvilStreamIsBusy(stream_), 0);
  anvilGraph_t graph = End();
  EXPECT_EQ(anvilStreamWantsAccesses(stream_), anvilSanitizerEnabled());
  EXPECT_OK(anvilStreamSynchronize(stream_));
  EXPECT_TRUE(order.empty());
  Replay(graph);
  Replay(graph);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 0, 1, 2}));
  EXPECT_OK(anvilGraphDestroy(graph));
}

TEST_F(Graphs, AreReplayedInOrderWithOtherWork) {
  int value = 0;
  Begin();
  ASSERT_OK(Do(stream_, [&value] { value *= 2; }));
  ASSERT_OK(Do(stream_, [&value] { value += 1; }));
  anvilGraph_t graph = End();
  constexpr int kReplays = 10000;
  int expected = 0;
  for (int i = 0; i < kReplays; ++i) {
    ASSERT_OK(Do(stream_, [&value] { value %= 1000; }));
    ASSERT_OK(anvilGraphLaunch(graph, stream_));
    expected = expected % 1000 * 2 + 1;
  }
  ASSERT_OK(anvilStreamSynchronize(stream_));
  EXPECT_EQ(value, expected);
  EXPECT_OK(anvilGraphDestroy(graph));
}

TEST_F(Graphs, KeepTheirCommandsUntilTheLastLaunchHasRun) {
  const auto alive = std::make_shared<int>(0);
  Begin();
  ASSERT_OK(Do(stream_, [alive] { ++*alive; }));
  anvilGraph_t graph = End();
  EXPECT_EQ(alive.use_count(), 2);
  ASSERT_OK(WaitAt(stream_, gate_));
  ASSERT_OK(anvilGraphLaunch(graph, stream_));
  ASSERT_OK(anvilGraphLaunch(graph, stream_));
  ASSERT_OK(anvilGraphDestroy(graph));
  EXPECT_EQ(alive.use_count(), 2);
  gate_->Open();
  ASSERT_OK(anvilStreamSynchronize(stream_));
  EXPECT_EQ(*alive, 2);
  EXPECT_EQ(alive.use_count(), 1);
}

TEST_F(Graphs, StopAtTheFirstCommandThatFails) {
  int ran = 0;
  Begin();
  ASSERT_OK(Do(stream_, [&ran] { ++ran; }));
  ASSERT_OK(Submit(stream_, [] { return ANVIL_ERROR_OUT_OF_MEMORY; }, "aten::foo"));
  ASSERT_OK(Do(stream_, [&ran] { ++ran; }));
  anvilGraph_t graph = End();
  for (int timing = 0; timing < 2; ++timing) {
    ran = 0;
    ASSERT_OK(anvilGraphSetTiming(graph, timing));
    ASSERT_OK(anvilGraphLaunch(graph, stream_));
    EXPECT_FAILS(anvilStreamSynchronize(stream_), ANVIL_ERROR_OUT_OF_MEMORY,
                 "Command 'aten::foo' failed");
    EXPECT_EQ(ran, 1);
  }
  EXPECT_OK(anvilGraphDestroy(graph));
}

TEST_F(Graphs, RecordStreamsThatJoinInOrderOfSubmission) {
  std::vector<int> order;
  Begin();
  ASSERT_OK(Do(stream_, [&order] { order.push_back(1); }));
  JoinSide();
  ASSERT_OK(Do(side_, [&order] { order.push_back(2); }));
  ASSERT_OK(anvilEventRecord(event_, side_));
  ASSERT_OK(anvilStreamWaitEvent(stream_, event_));
  ASSERT_OK(Do(stream_, [&order] { order.push_back(3); }));
  anvilGraph_t graph = End();
  EXPECT_EQ(anvilStreamIsCapturing(side_), 0);  // left with the capture's end
  Replay(graph);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
  const auto nodes = Nodes(graph);
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[1].stream, anvilStreamId(side_));
  EXPECT_EQ(nodes[2].stream, anvilStreamId(stream_));
  EXPECT_OK(Do(side_, [&order] { order.push_back(4); }));
  EXPECT_OK(anvilStreamSynchronize(side_));
  EXPECT_EQ(order.back(), 4);
  EXPECT_OK(anvilGraphDestroy(graph));
}

TEST_F(Graphs, TakeTheTimeOfTheirNodesOnRequest) {
  Begin();
  ASSERT_OK(Submit(
      stream_,
      [] {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        return ANVIL_SUCCESS;
      },
      "slow"));
  anvilGraph_t graph = End();
  Replay(graph);
  EXPECT_EQ(Nodes(graph)[0].runs, 0u);
  ASSERT_OK(anvilGraphSetTiming(graph, 1));
  Replay(graph);
  Replay(graph);
  const anvilGraphNode node = Nodes(graph)[0];
  EXPECT_STREQ(node.name, "slow");
  EXPECT_EQ(node.runs, 2u);
  EXPECT_GE(node.last_nanoseconds, 2000000u);
  EXPECT_GE(node.total_nanoseconds, node.last_nanoseconds + 2000000u);
  ASSERT_OK(anvilGraphSetTiming(graph, 0));
  Replay(graph);
  EXPECT_EQ(Nodes(graph)[0].runs, 2u);
  EXPECT_OK(anvilGraphDestroy(graph));
}

TEST_F(Graphs, CanBePartOfOthers) {
  int value = 0;
  Begin();
  ASSERT_OK(Do(stream_, [&value] { ++value; }));
  ASSERT_OK(Do(stream_, [&value] { ++value; }));
  anvilGraph_t inner = End();
  Begin();
  ASSERT_OK(anvilGraphLaunch(inner, stream_));
  ASSERT_OK(Do(stream_, [&value] { value *= 10; }));
  ASSERT_OK(anvilGraphLaunch(inner, stream_));
  anvilGraph_t outer = End();
  EXPECT_OK(anvilGraphDestroy(inner));
  EXPECT_EQ(Nodes(outer).size(), 3u);
  Replay(outer);
  EXPECT_EQ(value, 22);
  EXPECT_OK(anvilGraphDestroy(outer));
}

TEST_F(Graphs, MayBeEmpty) {
  Begin();
  anvilGraph_t graph = End();
  EXPECT_TRUE(Nodes(graph).empty());
  Replay(graph);
  EXPECT_OK(anvilGraphDestroy(graph));
}

TEST_F(Graphs, AreNotLaunchedOnFreedMemory) {
  anvilBlock_t block;
  void* ptr;
  ASSERT_OK(anvilMalloc(&block, &ptr, 1000, 0, 0));
  const anvilAccess access{block, ptr, 1000, ANVIL_ACCESS_READ};
  const anvilCommand command{
      "aten::reader", [](void*) { return ANVIL_SUCCESS; }, nullptr, nullptr, &access, 1};
  Begin();
  for (int i = 0; i < 3; ++i) ASSERT_OK(anvilStreamSubmit(stream_, &command));
  anvilGraph_t inner = End();
  Begin();
  ASSERT_OK(anvilGraphLaunch(inner, stream_));
  anvilGraph_t outer = End();
  Replay(inner);
  Replay(outer);
  ASSERT_OK(anvilFree(block));
  for (anvilGraph_t graph : {inner, outer}) {
    EXPECT_FAILS(anvilGraphLaunch(graph, stream_), ANVIL_ERROR_INVALID_VALUE, "'aten::reader'");
    EXPECT_OK(anvilGraphDestroy(graph));
  }
}

TEST_F(Graphs, BelongToOneDevice) {
  if (DeviceCount() < 2) GTEST_SKIP() << "needs cores for two devices";
  anvilStream_t other;
  ASSERT_OK(anvilStreamGetDefault(&other, 1));
  EXPECT_FAILS(anvilStreamBeginCapture(other, pool_), ANVIL_ERROR_INVALID_VALUE,
               "pool of device 0");
  Begin();
  anvilGraph_t graph = End();
  EXPECT_FAILS(anvilGraphLaunch(graph, other), ANVIL_ERROR_INVALID_VALUE, "device 1");
  EXPECT_OK(anvilGraphDestroy(graph));
  Begin();
  ASSERT_OK(anvilEventRecord(event_, stream_));
  EXPECT_FAILS(anvilStreamWaitEvent(other, event_), ANVIL_ERROR_CAPTURE, "one device");
  EndFails("one device");
}

TEST_F(Graphs, MistakesAreErrors) {
  size_t count;
  anvilGraph_t graph = nullptr;
  EXPECT_FAILS(anvilStreamBeginCapture(nullptr, pool_), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_FAILS(anvilStreamBeginCapture(stream_, nullptr), ANVIL_ERROR_INVALID_VALUE, "pool");
  EXPECT_FAILS(anvilStreamEndCapture(nullptr, &graph), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_FAILS(anvilStreamEndCapture(stream_, nullptr), ANVIL_ERROR_INVALID_VALUE, "graph");
  EXPECT_FAILS(anvilStreamFailCapture(stream_, nullptr), ANVIL_ERROR_INVALID_VALUE, "reason");
  EXPECT_FAILS(anvilStreamFailCapture(nullptr, ""), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_FAILS(anvilGraphLaunch(nullptr, stream_), ANVIL_ERROR_INVALID_VALUE, "graph");
  EXPECT_FAILS(anvilGraphDestroy(nullptr), ANVIL_ERROR_INVALID_VALUE, "graph");
  EXPECT_FAILS(anvilGraphSetTiming(nullptr, 1), ANVIL_ERROR_INVALID_VALUE, "graph");
  EXPECT_FAILS(anvilGraphGetNodes(nullptr, nullptr, 0, &count), ANVIL_ERROR_INVALID_VALUE, "graph");
  EXPECT_EQ(anvilStreamIsCapturing(nullptr), 0);
  Begin();
  graph = End();
  EXPECT_FAILS(anvilGraphLaunch(graph, nullptr), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_FAILS(anvilGraphGetNodes(graph, nullptr, 0, nullptr), ANVIL_ERROR_INVALID_VALUE, "count");
  EXPECT_FAILS(anvilGraphGetNodes(graph, nullptr, 1, &count), ANVIL_ERROR_INVALID_VALUE, "nodes");
  EXPECT_OK(anvilGraphDestroy(graph));
}

}  // namespace
