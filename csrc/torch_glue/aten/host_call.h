// SPDX-License-Identifier: Apache-2.0
// One call of a CPU kernel on the device's behalf: arguments to the host, results back.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include "aten/host_alias.h"
#include "aten/launch_plan.h"
#include "aten/op_traits.h"

namespace anvil {

class HostCall {
 public:
  // With `stage`, CPU tensors among the arguments are copied, since the caller may change them
  // before the call has run.
  HostCall(const c10::OperatorHandle& op, const OpTraits& traits, bool stage)
      : op_(op), traits_(traits), stage_(stage) {}

  // Replaces the op's arguments on top of the stack by host ones. Raises when tensors of the call
  // are on different devices; 0-dim CPU tensors may join as scalars, and index tensors may be on
  // the CPU, as on other accelerators.
  void arguments_to_host(torch::jit::Stack& stack);

  // The device on which the call runs and its results live.
  c10::Device device() const { return device_; }

  struct Entry {
    at::Tensor device;
    at::Tensor host;
    bool written;
  };
  // The device tensors among the arguments, each once.
  c10::ArrayRef<Entry> tensors() const { return entries_; }
  // For each device tensor in the order of the arguments, which of tensors() it is: a tensor may be
  // passed twice.
  c10::ArrayRef<uint32_t> order() const { return order_; }
  Entry& tensor(size_t position) { return entries_[position]; }
  // The argument after the kernel has run.
  static SeenArgument after_run(const Entry& entry);
  // Gives the device tensor, and the host tensor for it, the shape that the kernel will want.
  static void resize(Entry& entry, const ResizedArgument& to);

  // Makes device tensors follow in-place and out= results, then replaces the results on top of the
  // stack.
  void results_to_device(torch::jit::Stack& stack);

 private:
  c10::IValue value_to_host(const c10::IValue& value, const c10::Argument& argument);
  at::Tensor tensor_to_host(const at::Tensor& tensor, const c10::Argument& argument);
  at::Tensor tensor_to_device(at::Tensor host);
  at::Tensor note_host_tensor(const at::Tensor& tensor, const c10::Argument& argument);
  [[noreturn]] void raise_mixed(c10::Device other, const c10::Argument& argument) const;

  const c10::OperatorHandle& op_;
  const OpTraits& traits_;
  const bool stage_;
  c10::Device device_{c10::kCPU};
  bool found_device_ = false;
  const c10::Argument* host_argument_ =
      nullptr;  // a CPU tensor that may not mix with device tensors
  c10::SmallVector<Entry, 6> entries_;
  c10::SmallVector<uint32_t, 6> order_;
  c10::SmallVector<c10::Storage, 2> adopted_;  // device storages made for results of this call
};

}  // namespace anvil
