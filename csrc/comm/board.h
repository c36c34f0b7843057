// SPDX-License-Identifier: Apache-2.0
// What all ranks step through together: in each step every rank may put one slot's worth of bytes
// on the board, for every other rank to read.
//
// A rank has several slots and uses them in turn, so that it can be some steps ahead of the slowest
// reader. It says how many steps it has published and how many it has done with, two counters that
// it alone writes: an exchange costs two stores and as many loads as there are peers.
#pragma once

#include "data_type.h"
#include "member.h"

namespace anvil::comm {

enum class Operation : uint8_t {
  kAllReduce,
  kReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kGather,
  kScatter,
  kAllToAll,
  kBarrier,
};
const char* NameOf(Operation operation);

// What all ranks have to agree on. It is told with each slot, so that ranks that run different
// collectives hear so instead of taking each other's bytes for something else.
struct Agreement {
  Operation operation;
  uint64_t bytes = 0;  // in all
  int root = -1;
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
};

class Board {
 public:
  explicit Board(Member& member) : member_(member), bytes_(member.segment().slot_bytes()) {}

  size_t slot_bytes() const { return bytes_; }

  // Begins a collective.
  Call Begin(const Agreement& agreement, Milliseconds timeout);

  // My slot of the next step, once nobody reads what it held before.
  std::byte* Open(const Call& call);
  // What was written into the open slot may be read. Gives the step.
  uint64_t Publish();
  // A step in which I have nothing to say.
  uint64_t Pass() { return next_++; }

  // What `rank` has published in `step`, once it has. Throws where that is of another collective.
  const std::byte* Read(const Call& call, int rank, uint64_t step);
  // I read nothing any more of this step and those before it.
  void Finish(uint64_t step);

 private:
  Member& member_;
  const size_t bytes_;
  uint64_t next_ = 0;  // step
  SlotHeader header_{};
};

}  // namespace anvil::comm
