// SPDX-License-Identifier: Apache-2.0
// Collectives made of messages between two ranks, for ranks that share no memory.
#pragma once

#include "group.h"

namespace anvil::comm {

// What derives from it carries messages (Exchange) and can be aborted; the rest is here. Results
// are those of any other group, to the bit.
class ExchangeGroup : public Group {
 public:
  using Group::Group;

  void AllReduce(const void* input, void* output, size_t count, DataType type, ReduceOp op,
                 Milliseconds timeout) override;
  void Reduce(const void* input, void* output, size_t count, DataType type, ReduceOp op, int root,
              Milliseconds timeout) override;
  void AllGather(ConstBuffer input, std::span<const Buffer> outputs, Milliseconds timeout) override;
  void ReduceScatter(std::span<const ConstBuffer> inputs, void* output, DataType type, ReduceOp op,
                     Milliseconds timeout) override;
  void Broadcast(Buffer data, int root, Milliseconds timeout) override;
  void Gather(ConstBuffer input, std::span<const Buffer> outputs, int root,
              Milliseconds timeout) override;
  void Scatter(std::span<const ConstBuffer> inputs, Buffer output, int root,
               Milliseconds timeout) override;
  void AllToAll(std::span<const ConstBuffer> inputs, std::span<const Buffer> outputs,
                Milliseconds timeout) override;
  void Barrier(Milliseconds timeout) override;

 private:
  // Receives every rank's bytes, this one's by a copy, and reduces them.
  void ReduceHere(const char* name, ConstBuffer mine, void* output, DataType type, ReduceOp op,
                  std::vector<Transfer> sends, Milliseconds timeout);
};

}  // namespace anvil::comm
