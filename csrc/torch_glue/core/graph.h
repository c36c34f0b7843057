// SPDX-License-Identifier: Apache-2.0
// Recorded graphs as PyTorch knows them: torch.accelerator.Graph, and torch.anvil.Graph, which can
// also list and time its nodes.
#pragma once

#include <ATen/core/GraphImplInterface.h>

#include <memory>
#include <string>
#include <vector>

#include "core/device.h"

namespace anvil {

class MemoryPool;

class Graph final : public at::GraphImplInterface {
 public:
  Graph() = default;
  ~Graph() override;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Captures what the calling thread's current stream gets from now on. Other threads and other
  // streams are not affected whatever `mode` says: nothing that they may do disturbs a capture. A
  // pool of {0, 0} means one of the graph's own.
  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode mode) override;
  // Raises with the reason when something could not be recorded; the capture is over in any case.
  void capture_end() override;
  // There is nothing left to do after the capture.
  void instantiate() override;
  // On the current stream; does not wait.
  void replay() override;
  void reset() override;
  at::MempoolId_t pool() const override;
  // Takes the times of nodes from now on.
  void enable_debug_mode() override { set_timing(true); }
  // The nodes as a GraphViz file.
  void debug_dump(const std::string& path) override;

  struct Node {
    std::string name;
    uint64_t stream;
    uint64_t runs;  // timed ones
    double last_us;
    double mean_us;  // 0 when there are no timed runs
  };
  std::vector<Node> nodes() const;
  void set_timing(bool enabled);
  // {held by tensors, backed by memory} of the pool, bytes.
  std::pair<size_t, size_t> pool_bytes() const;

 private:
  anvilGraph_t captured() const;

  c10::DeviceIndex device_ = -1;
  anvilStream_t stream_ = nullptr;  // while capturing
  anvilGraph_t graph_ = nullptr;
  bool timing_ = false;
  std::shared_ptr<MemoryPool> pool_;
};

// A pool id for graphs that share memory.
at::MempoolId_t new_graph_pool_id();

// Makes torch.accelerator.Graph find this implementation.
void register_graphs();

}  // namespace anvil
