// SPDX-License-Identifier: Apache-2.0
// A collective that was queued on a stream, as torch.distributed hands it to the caller.
#pragma once

#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "core/device.h"

namespace anvil {

// What a command leaves for whoever asks about it; shared with the command.
class Outcome {
 public:
  void fail(std::exception_ptr error);
  std::exception_ptr error() const;

 private:
  mutable std::mutex mutex_;
  std::exception_ptr error_;
};

class CollectiveWork final : public c10d::Work {
 public:
  CollectiveWork(int rank, c10d::OpType type, anvilStream_t stream, c10::DeviceIndex device,
                 bool blocks_host);
  ~CollectiveWork() override;

  const std::shared_ptr<Outcome>& outcome() const { return outcome_; }
  // The collective is queued: what comes before this point of the stream belongs to it.
  void queued(std::vector<at::Tensor> outputs);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  // Makes the current stream of the calling thread wait, not the thread.
  void synchronize() override;
  // As synchronize; with a timeout, and after a barrier, the thread waits as well. Raises what the
  // collective failed with, where that is known by now.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void blockCurrentStream() override { synchronize(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void wait_on_host(std::chrono::milliseconds timeout);

  const anvilStream_t stream_;
  const c10::DeviceIndex device_;
  const bool blocks_host_;
  const std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
  anvilEvent_t event_ = nullptr;  // null until it is queued
  std::vector<at::Tensor> outputs_;
};

}  // namespace anvil
