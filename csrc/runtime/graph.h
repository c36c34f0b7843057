// SPDX-License-Identifier: Apache-2.0
// Graphs: recorded commands, replayed as one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include "anvil/runtime.h"

namespace anvil {
class GraphPool;
struct Device;
}  // namespace anvil

// Shared by its handle, queued launches and graphs that it is part of.
struct anvilGraph_st {
  anvilGraph_st(anvil::Device* device, std::shared_ptr<anvil::GraphPool> pool);
  ~anvilGraph_st();
  anvilGraph_st(const anvilGraph_st&) = delete;
  anvilGraph_st& operator=(const anvilGraph_st&) = delete;

  anvil::Device* const device;

  void Reference() { references_.fetch_add(1, std::memory_order_relaxed); }
  void Release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  // Takes the command over. `graph`: the one it replays, or null.
  void Add(const anvilCommand& command, uint64_t stream, anvilGraph_t graph);
  // Called when no more is added.
  void Seal();

  // The command that replays the graph; holds a reference.
  anvilCommand Launch();
  // Fails when a block that the graph uses, other than its pool's, has been freed.
  anvilError_t CheckBlocks() const;

  void GetNodes(anvilGraphNode* nodes, size_t capacity, size_t* count) const;
  void SetTiming(bool enabled) { timed_.store(enabled, std::memory_order_relaxed); }

 private:
  struct Node {
    const char* name;
    anvilError_t (*run)(void* arg);
    void (*destroy)(void* arg);
    void* arg;
    uint64_t stream;
  };
  // Written by the executor, read by whoever asks.
  struct Times {
    std::atomic<uint64_t> runs{0}, last{0}, total{0};
  };
  // A block that has to be the same at each launch as it was at the capture.
  struct Block {
    anvilBlock_t block;
    uint64_t generation;
    const char* node;  // the name of the first that uses it
  };

  anvilError_t Replay();
  anvilError_t ReplayTimed();
  void Remember(const Block& block);

  const std::shared_ptr<anvil::GraphPool> pool_;
  std::atomic<int> references_{1};
  std::atomic<bool> timed_{false};
  std::vector<Node> nodes_;
  std::unique_ptr<Times[]> times_;  // by node
  std::vector<Block> blocks_;
  std::unordered_set<anvilBlock_t> known_blocks_;
  std::vector<anvilAccess> accesses_;  // for the sanitizer
};
