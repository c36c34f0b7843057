// SPDX-License-Identifier: Apache-2.0
// One call of a compiled Triton kernel: its arguments, and where it runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstring>
#include <memory>
#include <vector>

#include "core/device.h"
#include "kernel.h"

namespace anvil {

// Collects the arguments in the kernel's order, then launches. The names are for errors and outlive
// the call, as do the tensors.
class KernelCall {
 public:
  explicit KernelCall(std::shared_ptr<triton::Kernel> kernel) : kernel_(std::move(kernel)) {}

  // A tensor's memory from its first element on. Nothing waits, and nothing is looked at.
  void add_tensor(const at::Tensor& tensor, const char* name, unsigned flags);
  // The same for a tensor that only this call knows.
  void add_owned_tensor(at::Tensor tensor, const char* name, unsigned flags);
  // An address that somebody else took; if it is in a device's memory, the kernel runs there.
  void add_address(uint64_t address, const char* name);

  template <typename T>
  void add_value(T value) {
    uint64_t slot = 0;
    static_assert(sizeof value <= sizeof slot);
    std::memcpy(&slot, &value, sizeof value);
    slots_.push_back(slot);
  }

  // Runs the grid: as a command of the current stream of the anvil device on which the arguments
  // live or, where none does, behind what the current stream was given before, on the calling
  // thread and PyTorch's. Pageable memory beside memory of a device makes the caller wait, so that
  // it may use it again at once. The calling thread must not hold Python's lock.
  void launch(const triton::Grid& grid);

 private:
  struct Use {
    const at::Tensor* tensor;
    const char* name;
    unsigned flags;  // ANVIL_ACCESS_*
  };

  void meet(c10::DeviceIndex device, const char* name);
  void queue(const triton::Grid& grid);

  std::shared_ptr<triton::Kernel> kernel_;
  c10::SmallVector<uint64_t, 24> slots_;
  c10::SmallVector<Use, 16> on_device_;
  c10::SmallVector<Use, 4> on_host_;
  std::vector<std::unique_ptr<at::Tensor>> owned_;
  c10::DeviceIndex device_ = -1;       // -1: none of the arguments has one
  const char* device_name_ = nullptr;  // the argument that said so
};

}  // namespace anvil
