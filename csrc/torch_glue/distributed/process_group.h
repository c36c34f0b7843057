// SPDX-License-Identifier: Apache-2.0
// torch.distributed's backend "anvil": collectives on device tensors, as commands of the current
// stream.
//
// A call returns when its command is queued. Commands run in the order of their stream, with the
// kernels before and behind them, and can be captured into graphs, whose replays run the
// collectives again: all ranks have to replay them in the same order, as they have to call them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "distributed/operands.h"
#include "distributed/work.h"

namespace anvil {

class ProcessGroup final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Work = c10::intrusive_ptr<c10d::Work>;

  // Every rank makes one, with the group's own store. `name` is the group's, for messages.
  // `refusal`: why the ranks are not to share memory, "" where they are.
  ProcessGroup(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout,
               std::string name, const std::string& refusal);

  // Why the ranks share no memory, "" where they do. They then need a backend that carries their
  // messages, over the same ranks, before the first collective.
  const std::string& fallback_reason() const { return fallback_reason_; }
  void use_gloo(c10::intrusive_ptr<c10d::Backend> gloo);

  // allreduce into another tensor of the same shape and dtype.
  Work all_reduce_into(const at::Tensor& output, const at::Tensor& input);

  const std::string getBackendName() const override { return "anvil"; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void startCoalescing() override;
  Work endCoalescing() override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void abort() override;

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work allreduce_coalesced(Tensors& tensors,
                           const c10d::AllreduceCoalescedOptions& options) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::AllgatherOptions& options) override;
  Work _allgather_base(at::Tensor& output, at::Tensor& input,
                       const c10d::AllgatherOptions& options) override;
  Work allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                           const c10d::AllgatherOptions& options) override;
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) override;
  Work gather(std::vector<Tensors>& outputs, Tensors& inputs,
              const c10d::GatherOptions& options) override;
  Work scatter(Tensors& outputs, std::vector<Tensors>& inputs,
               const c10d::ScatterOptions& options) override;
  Work reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ReduceScatterOptions& options) override;
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override;
  Work reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::ReduceScatterOptions& options) override;
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                     std::vector<int64_t>& input_splits,
                     const c10d::AllToAllOptions& options) override;
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Work send(Tensors& tensors, int to, int tag) override;
  Work recv(Tensors& tensors, int from, int tag) override;
  Work barrier(const c10d::BarrierOptions& options) override;

 private:
  using Body = std::function<void(comm::Group& group)>;
  struct Batch;

  std::chrono::milliseconds timeout_for(std::chrono::milliseconds asked) const;
  // Queues body(group), which may run several times, or makes it part of the batch.
  Work run(c10d::OpType type, Operands operands, Tensors outputs, Body body);
  Work transfer(c10d::OpType type, Operands operands, comm::Transfer transfer, Tensors outputs);
  c10::intrusive_ptr<CollectiveWork> new_work(c10d::OpType type, c10::DeviceIndex device) const;
  void queue(const char* name, const std::vector<Operands>& operands, CollectiveWork& work,
             Tensors outputs, Body body);

  std::shared_ptr<comm::Group> group_;
  std::string fallback_reason_;
  const std::string name_;
  std::chrono::milliseconds timeout_;
  uint64_t sequence_ = 0;
  std::shared_ptr<Batch> batch_;  // between startCoalescing and endCoalescing
};

}  // namespace anvil
