// SPDX-License-Identifier: Apache-2.0
// What device memory has to do with streams: waiting for them, and commands on the memory itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "heap.h"

namespace anvil {

struct Device;

// What the allocator asks of the device's streams; never with its lock held.
class StreamOrder {
 public:
  struct Stream {
    uint64_t id;
    bool busy;  // something submitted has not run yet
  };

  // Waits until all that was submitted so far has run; false where one cannot wait, since the
  // calling thread runs a command.
  virtual bool WaitIdle() = 0;
  // The streams that there are. One that is missing has nothing left to run, ever.
  virtual std::vector<Stream> Streams() = 0;

 protected:
  ~StreamOrder() = default;
};

class DeviceStreams final : public StreamOrder {
 public:
  explicit DeviceStreams(Device& device) : device_(device) {}
  bool WaitIdle() override;
  std::vector<Stream> Streams() override;

 private:
  Device& device_;
};

// Other streams' use of a block, told with anvilBlockRecordStream.
struct StreamUses {
  struct Use {
    int device;
    uint64_t stream;
  };

  explicit StreamUses(Block* block) : block(block) {}
  bool Contains(Use use) const;

  Block* const block;
  std::vector<Use> list;
  std::atomic<size_t> pending{0};  // of those that have to run before the block is free
};

// ANVIL_DEBUG_POISON: memory without contents that matter is filled with kPoison, which is NaN in
// every floating point format, so that whoever uses it is found out. Set before the first device.
inline std::atomic<bool> debug_poison{false};
inline bool DebugPoison() { return debug_poison.load(std::memory_order_relaxed); }
inline constexpr int kPoison = 0xFF;

// Fills the whole block as a command of the stream, like any other's.
anvilError_t FillInOrder(anvilStream_t stream, Block* block, int value);

// Frees the block in stream order once the commands submitted so far to the streams in block->uses
// have run. The block is held back (allocator.h).
void FreeAfterUses(Block* block);
// The last part of that, at once: poisons the block and returns it to its pool.
void FreeHeldBack(Block* block);

}  // namespace anvil
