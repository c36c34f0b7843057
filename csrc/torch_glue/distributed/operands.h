// SPDX-License-Identifier: Apache-2.0
// The tensors of a collective, as the contiguous memory that it works on.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "core/command.h"
#include "group.h"

namespace anvil {

// Made by the caller of a collective, in the order of the current stream: copies that strided
// tensors need are commands before and behind the collective's own.
class Operands {
 public:
  // `name`: of the collective, for errors.
  explicit Operands(const char* name) : name_(name) {}

  // What is read, written, or both. Raises for a tensor that is not a dense one on the device that
  // the others are on.
  comm::ConstBuffer in(const at::Tensor& tensor);
  comm::Buffer out(const at::Tensor& tensor);
  comm::Buffer in_out(const at::Tensor& tensor);
  std::vector<comm::ConstBuffer> in(const std::vector<at::Tensor>& tensors);
  std::vector<comm::Buffer> out(const std::vector<at::Tensor>& tensors);

  // What the command touches.
  void add_accesses(Accesses& accesses) const;
  // Behind the command: results go to where the caller wants them.
  void copy_back() const;

  const char* name() const { return name_; }
  // Of the tensors; the current device where there are none.
  c10::DeviceIndex device() const;

 private:
  at::Tensor contiguous(const at::Tensor& tensor, bool with_values);
  void check_device(const at::Tensor& tensor);

  const char* name_;
  c10::DeviceIndex device_ = -1;
  std::vector<at::Tensor> reads_;
  std::vector<at::Tensor> writes_;
  std::vector<std::pair<at::Tensor, at::Tensor>> back_;  // {the caller's, ours}
};

// The parts of contiguous memory for each of `ranks`, one after the other.
std::vector<comm::Buffer> equal_parts(comm::Buffer whole, int ranks);
std::vector<comm::ConstBuffer> equal_parts(comm::ConstBuffer whole, int ranks);

// Raises, with the collective's name, for what cannot be reduced.
comm::DataType data_type(const char* name, const at::Tensor& tensor);

}  // namespace anvil
