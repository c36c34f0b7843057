// SPDX-License-Identifier: Apache-2.0
// Streams, an event and a pool to capture graphs with.
#pragma once

#include <string>
#include <vector>

#include "api_checks.h"
#include "stream_work.h"

class Graphs : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(anvilStreamCreate(&stream_, 0, 0));
    ASSERT_OK(anvilStreamCreate(&side_, 0, 0));
    ASSERT_OK(anvilEventCreate(&event_, ANVIL_EVENT_TIMING));
    ASSERT_OK(anvilGraphPoolCreate(&pool_, 0));
  }
  void TearDown() override {
    gate_->Open();
    anvilDeviceSynchronize(0);
    EXPECT_OK(anvilGraphPoolDestroy(pool_));
    EXPECT_OK(anvilEventDestroy(event_));
    EXPECT_OK(anvilStreamDestroy(stream_));
    EXPECT_OK(anvilStreamDestroy(side_));
  }

  void Begin() { ASSERT_OK(anvilStreamBeginCapture(stream_, pool_)); }
  anvilGraph_t End() {
    anvilGraph_t graph = nullptr;
    EXPECT_OK(anvilStreamEndCapture(stream_, &graph));
    EXPECT_EQ(anvilStreamIsCapturing(stream_), 0);
    return graph;
  }
  // The capture is over and there is no graph, with these words.
  void EndFails(const std::string& words) {
    anvilGraph_t graph = nullptr;
    EXPECT_FAILS(anvilStreamEndCapture(stream_, &graph), ANVIL_ERROR_CAPTURE, words);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(anvilStreamIsCapturing(stream_), 0);
    EXPECT_EQ(anvilStreamIsCapturing(side_), 0);
  }
  void Replay(anvilGraph_t graph) {
    ASSERT_OK(anvilGraphLaunch(graph, stream_));
    ASSERT_OK(anvilStreamSynchronize(stream_));
  }
  // Lets `side_` take part in the capture.
  void JoinSide() {
    ASSERT_OK(anvilEventRecord(event_, stream_));
    ASSERT_OK(anvilStreamWaitEvent(side_, event_));
    ASSERT_EQ(anvilStreamIsCapturing(side_), 1);
  }

  anvilStream_t stream_ = nullptr, side_ = nullptr;
  anvilEvent_t event_ = nullptr;
  anvilGraphPool_t pool_ = nullptr;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
};

inline std::vector<anvilGraphNode> Nodes(anvilGraph_t graph) {
  size_t count = 0;
  EXPECT_OK(anvilGraphGetNodes(graph, nullptr, 0, &count));
  std::vector<anvilGraphNode> nodes(count);
  EXPECT_OK(anvilGraphGetNodes(graph, nodes.data(), count, &count));
  EXPECT_EQ(count, nodes.size());
  return nodes;
}
