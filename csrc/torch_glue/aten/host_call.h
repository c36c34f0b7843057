// SPDX-License-Identifier: Apache-2.0
// One call of a CPU kernel on the device's behalf: arguments to the host, results back.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include "aten/host_alias.h"

namespace anvil {

// What the fallback needs to know of an op, read once from its schema.
struct OpTraits {
  explicit OpTraits(const c10::FunctionSchema& schema);

  size_t argument_count;
  size_t return_count;
  bool mutates;                     // some argument is written
  bool shares_results;              // there may be several, over one memory
  std::optional<size_t> generator;  // position of the Generator argument
};

class HostCall {
 public:
  HostCall(const c10::OperatorHandle& op, const OpTraits& traits) : op_(op), traits_(traits) {}

  // Replaces the op's arguments on top of the stack by host ones. Raises when tensors of the call
  // are on different devices; 0-dim CPU tensors may join as scalars, and index tensors may be on
  // the CPU, as on other accelerators.
  void arguments_to_host(torch::jit::Stack& stack);

  // The device on which the call runs and its results live.
  c10::Device device() const { return device_; }

  // Makes device tensors follow in-place and out= results, then replaces the results on top of the
  // stack.
  void results_to_device(torch::jit::Stack& stack);

 private:
  struct Entry {
    at::Tensor device;
    at::Tensor host;
  };

  c10::IValue value_to_host(const c10::IValue& value, const c10::Argument& argument);
  at::Tensor tensor_to_host(const at::Tensor& tensor, const c10::Argument& argument);
  at::Tensor tensor_to_device(at::Tensor host);
  void note_host_tensor(const at::Tensor& tensor, const c10::Argument& argument);
  [[noreturn]] void raise_mixed(c10::Device other, const c10::Argument& argument) const;

  const c10::OperatorHandle& op_;
  const OpTraits& traits_;
  c10::Device device_{c10::kCPU};
  bool found_device_ = false;
  const c10::Argument* host_argument_ =
      nullptr;  // a CPU tensor that may not mix with device tensors
  c10::SmallVector<Entry, 6> entries_;
  c10::SmallVector<c10::Storage, 2> adopted_;  // device storages made for results of this call
};

}  // namespace anvil
