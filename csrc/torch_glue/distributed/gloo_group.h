// SPDX-License-Identifier: Apache-2.0
// The way out for ranks that share no memory: messages over PyTorch's gloo.
#pragma once

#include <atomic>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "exchange_group.h"

namespace anvil {

class GlooGroup final : public comm::ExchangeGroup {
 public:
  // `gloo`: a backend over the same ranks that sends and receives host tensors.
  GlooGroup(c10::intrusive_ptr<c10d::Backend> gloo, std::string name);

  void Exchange(const char* name, std::span<const comm::Transfer> transfers,
                comm::Milliseconds timeout) override;
  void Abort() override;

 private:
  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const std::string name_;
  std::atomic<bool> aborted_{false};
};

}  // namespace anvil
