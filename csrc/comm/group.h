// SPDX-License-Identifier: Apache-2.0
// The collectives of one rank of a group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "channel.h"
#include "data_type.h"
#include "error.h"

namespace anvil::comm {

struct Buffer {
  void* data;
  size_t bytes;
};
struct ConstBuffer {
  const void* data;
  size_t bytes;
};

// Every rank calls the same operations in the same order, with sizes that fit each other. An
// operation returns when this rank's results are there and its inputs may be changed. One thread at
// a time; an input and an output may be the same memory, but not overlap in part. Lists have an
// entry for each rank. Where an operation cannot be finished it throws CommError, and so do all
// that follow.
//
// Reductions are those of reduce.h: in the order of the ranks, whatever the size of the message and
// wherever an element lies in it.
class Group {
 public:
  Group(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // `count` elements; the result is the same on every rank.
  virtual void AllReduce(const void* input, void* output, size_t count, DataType type, ReduceOp op,
                         Milliseconds timeout) = 0;
  // The same, on rank `root` alone; `output` is not used elsewhere.
  virtual void Reduce(const void* input, void* output, size_t count, DataType type, ReduceOp op,
                      int root, Milliseconds timeout) = 0;
  // outputs[r] gets the input of rank r, whose size all ranks know.
  virtual void AllGather(ConstBuffer input, std::span<const Buffer> outputs,
                         Milliseconds timeout) = 0;
  // Rank r gets the reduction of the ranks' inputs[r], which have one size.
  virtual void ReduceScatter(std::span<const ConstBuffer> inputs, void* output, DataType type,
                             ReduceOp op, Milliseconds timeout) = 0;
  virtual void Broadcast(Buffer data, int root, Milliseconds timeout) = 0;
  // As AllGather, on rank `root` alone; elsewhere `outputs` is not used. All inputs have one size.
  virtual void Gather(ConstBuffer input, std::span<const Buffer> outputs, int root,
                      Milliseconds timeout) = 0;
  // Rank r gets inputs[r] of rank `root`; elsewhere `inputs` is not used. All have one size.
  virtual void Scatter(std::span<const ConstBuffer> inputs, Buffer output, int root,
                       Milliseconds timeout) = 0;
  // outputs[r] gets inputs[this rank] of rank r.
  virtual void AllToAll(std::span<const ConstBuffer> inputs, std::span<const Buffer> outputs,
                        Milliseconds timeout) = 0;
  // Sends and receives, at once; `name` is that of the call for messages. Messages of one rank to
  // another arrive in the order in which they are sent.
  virtual void Exchange(const char* name, std::span<const Transfer> transfers,
                        Milliseconds timeout) = 0;
  virtual void Barrier(Milliseconds timeout) = 0;

  // From any thread: what runs, and what is called from now on, throws.
  virtual void Abort() = 0;

 private:
  const int rank_;
  const int size_;
};

// Shares of `count` elements for each of `ranks`, as equal as they can be: where share `rank`
// begins.
inline size_t ShareBegin(size_t count, int ranks, int rank) {
  const size_t n = static_cast<size_t>(ranks), r = static_cast<size_t>(rank);
  return count / n * r + std::min(r, count % n);
}

}  // namespace anvil::comm
