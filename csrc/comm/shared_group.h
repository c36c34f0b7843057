// SPDX-License-Identifier: Apache-2.0
// Collectives between ranks of one host, over a shared segment.
#pragma once

#include <memory>
#include <mutex>

#include "board.h"
#include "channel.h"
#include "copier.h"
#include "group.h"
#include "segment.h"

namespace anvil::comm {

// Any thread may call; one at a time goes on.
class SharedGroup : public Group {
 public:
  struct Options {
    std::string name;                 // of the group, for messages
    Milliseconds timeout{30 * 1000};  // for the other ranks to join
    int device = -1;                  // whose workers copy and reduce; below 0: the caller alone
  };

  // Returns when all ranks have joined. Throws CommError.
  SharedGroup(std::shared_ptr<Segment> segment, int rank, const Options& options);

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
  void Exchange(const char* name, std::span<const Transfer> transfers,
                Milliseconds timeout) override;
  void Barrier(Milliseconds timeout) override;
  void Abort() override { member_.Abort(); }

  // What the slots of a group should hold, for devices with so many workers.
  static size_t SlotBytes(int ranks, int workers);

 private:
  struct Reduction;

  bool is_me(int rank) const { return rank == this->rank(); }
  // How much of a slot is for one of the other ranks, and where it lies in the slot of `writer`.
  size_t PartBytes() const;
  size_t PartOffset(int writer, int reader) const;

  void Reduce(const Call& call, const Reduction& reduction);
  void ReduceAtOnce(const Call& call, const Reduction& reduction);
  void ReduceInChunks(const Call& call, const Reduction& reduction);
  uint64_t PublishInputs(const Call& call, const Reduction& reduction, size_t chunk);
  uint64_t ReduceShare(const Call& call, const Reduction& reduction, size_t chunk, uint64_t step);
  void CollectShares(const Call& call, const Reduction& reduction, size_t chunk, uint64_t step);

  // Rounds of publish(i), which gives its step, and collect(i, step); what is published is one
  // round ahead, so that nobody waits for what was written just now.
  template <typename Publish, typename Collect>
  void InRounds(size_t rounds, const Publish& publish, const Collect& collect);

  std::mutex mutex_;
  Member member_;
  Board board_;
  Channels channels_;
  const Copier copier_;
};

}  // namespace anvil::comm
