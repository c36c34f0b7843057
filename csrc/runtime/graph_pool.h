// SPDX-License-Identifier: Apache-2.0
// The memory behind graphs: an arena that the captures of one pool take turns in.
#pragma once

#include <cstddef>
#include <memory>

#include "allocator.h"

namespace anvil {

struct Device;

// Shared by its handle, its graphs and its blocks; its memory goes back to the system after the
// last of them.
class GraphPool : public std::enable_shared_from_this<GraphPool> {
 public:
  explicit GraphPool(Device* device);
  ~GraphPool();
  GraphPool(const GraphPool&) = delete;
  GraphPool& operator=(const GraphPool&) = delete;

  // A block of at least `bytes` > 0 at the lowest address where it fits. Its memory holds whatever
  // the last replay left. anvilFree makes its place available to the next allocation at once: the
  // order of a capture is the order of its replay.
  anvilError_t Allocate(size_t bytes, Block** block);
  DeviceAllocator::Usage GetUsage() const;
  Device* device() const { return device_; }

 private:
  Device* const device_;
  std::unique_ptr<Arena> arena_;
};

// The pool in whose arena the block is, or null. The block has not been freed.
inline GraphPool* PoolOf(const Block* block) { return block->pool; }

}  // namespace anvil

struct anvilGraphPool_st {
  std::shared_ptr<anvil::GraphPool> pool;
};
