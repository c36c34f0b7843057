// SPDX-License-Identifier: Apache-2.0
#include "graph.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "capture.h"
#include "command.h"
#include "device.h"
#include "error.h"
#include "graph_pool.h"
#include "process.h"
#include "sanitizer.h"

using namespace anvil;

anvilGraph_st::anvilGraph_st(Device* device, std::shared_ptr<GraphPool> pool)
    : device(device), pool_(std::move(pool)) {}

anvilGraph_st::~anvilGraph_st() {
  for (const Node& node : nodes_) {
    if (node.destroy != nullptr) node.destroy(node.arg);
  }
}

void anvilGraph_st::Add(const anvilCommand& command, uint64_t stream, anvilGraph_t graph) {
  if (graph != nullptr) {
    for (const Block& block : graph->blocks_) Remember(block);
  } else {
    for (size_t i = 0; i < command.access_count; ++i) {
      const anvilBlock_t block = command.accesses[i].block;
      if (block == nullptr || PoolOf(block) == pool_.get()) continue;
      Remember({block, anvilBlockGeneration(block), command.name});
    }
  }
  if (sanitizer::Enabled()) {
    accesses_.insert(accesses_.end(), command.accesses, command.accesses + command.access_count);
  }
  // Last: what fails before leaves the command to the caller.
  nodes_.push_back({command.name, command.run, command.destroy, command.arg, stream});
}

void anvilGraph_st::Seal() {
  times_ = std::make_unique<Times[]>(nodes_.size());
  known_blocks_.clear();
}

void anvilGraph_st::Remember(const Block& block) {
  if (known_blocks_.insert(block.block).second) blocks_.push_back(block);
}

anvilCommand anvilGraph_st::Launch() {
  Reference();
  return {"graph",
          [](void* arg) { return static_cast<anvilGraph_t>(arg)->Replay(); },
          [](void* arg) { static_cast<anvilGraph_t>(arg)->Release(); },
          this,
          accesses_.data(),
          accesses_.size()};
}

anvilError_t anvilGraph_st::CheckBlocks() const {
  for (const Block& used : blocks_) {
    if (anvilBlockGeneration(used.block) == used.generation) continue;
    sanitizer::StaleGraph(used.node, used.block, used.generation);
    return Fail(ANVIL_ERROR_INVALID_VALUE,
                "The graph cannot be launched: memory that its command '" +
                    std::string(used.node != nullptr ? used.node : "unnamed") +
                    "' uses has been freed since the capture. Keep what a graph reads and writes "
                    "alive as long as the graph, or capture it again.");
  }
  return ANVIL_SUCCESS;
}

anvilError_t anvilGraph_st::Replay() {
  if (timed_.load(std::memory_order_relaxed)) return ReplayTimed();
  for (const Node& node : nodes_) {
    const anvilError_t status = Run(node.name, node.run, node.arg);
    if (status != ANVIL_SUCCESS) return status;
  }
  return ANVIL_SUCCESS;
}

anvilError_t anvilGraph_st::ReplayTimed() {
  using std::chrono::steady_clock;
  auto begin = steady_clock::now();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const anvilError_t status = Run(nodes_[i].name, nodes_[i].run, nodes_[i].arg);
    if (status != ANVIL_SUCCESS) return status;
    const auto end = steady_clock::now();
    const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin);
    const uint64_t nanoseconds = static_cast<uint64_t>(time.count());
    times_[i].runs.fetch_add(1, std::memory_order_relaxed);
    times_[i].last.store(nanoseconds, std::memory_order_relaxed);
    times_[i].total.fetch_add(nanoseconds, std::memory_order_relaxed);
    begin = end;
  }
  return ANVIL_SUCCESS;
}

void anvilGraph_st::GetNodes(anvilGraphNode* nodes, size_t capacity, size_t* count) const {
  *count = nodes_.size();
  for (size_t i = 0; i < std::min(capacity, nodes_.size()); ++i) {
    const Times& times = times_[i];
    nodes[i] = {nodes_[i].name, nodes_[i].stream, times.runs.load(std::memory_order_relaxed),
                times.last.load(std::memory_order_relaxed),
                times.total.load(std::memory_order_relaxed)};
  }
}

namespace {

anvilError_t CheckGraph(const char* function, anvilGraph_t graph) {
  if (IsForkedChild()) return FailForked();
  if (graph == nullptr) return FailNull(function, "graph");
  return ANVIL_SUCCESS;
}

}  // namespace

anvilError_t anvilGraphLaunch(anvilGraph_t graph, anvilStream_t stream) {
  return Guarded([&] {
    anvilError_t status = CheckGraph("anvilGraphLaunch", graph);
    if (status != ANVIL_SUCCESS) return status;
    if (stream == nullptr) return FailNull("anvilGraphLaunch", "stream");
    if (stream->device != graph->device) {
      return Fail(ANVIL_ERROR_INVALID_VALUE, "A graph captured on device " +
                                                 std::to_string(graph->device->index) +
                                                 " cannot be launched on device " +
                                                 std::to_string(stream->device->index) + ".");
    }
    status = graph->CheckBlocks();
    if (status != ANVIL_SUCCESS) return status;
    return Submit(stream, graph->Launch(), graph);
  });
}

anvilError_t anvilGraphDestroy(anvilGraph_t graph) {
  return Guarded([&] {
    const anvilError_t status = CheckGraph("anvilGraphDestroy", graph);
    if (status == ANVIL_SUCCESS) graph->Release();
    return status;
  });
}

anvilError_t anvilGraphGetNodes(anvilGraph_t graph, anvilGraphNode* nodes, size_t capacity,
                                size_t* count) {
  return Guarded([&] {
    const anvilError_t status = CheckGraph("anvilGraphGetNodes", graph);
    if (status != ANVIL_SUCCESS) return status;
    if (count == nullptr) return FailNull("anvilGraphGetNodes", "count");
    if (nodes == nullptr && capacity > 0) return FailNull("anvilGraphGetNodes", "nodes");
    graph->GetNodes(nodes, capacity, count);
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilGraphSetTiming(anvilGraph_t graph, int enabled) {
  return Guarded([&] {
    const anvilError_t status = CheckGraph("anvilGraphSetTiming", graph);
    if (status == ANVIL_SUCCESS) graph->SetTiming(enabled != 0);
    return status;
  });
}
