// SPDX-License-Identifier: Apache-2.0
// What collectives have in common in looking at their arguments. Each raises with the collective's
// name.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "data_type.h"

namespace anvil {

// For reducing `tensor`.
comm::ReduceOp reduce_op(const char* name, const c10d::ReduceOp& op, const at::Tensor& tensor);

const at::Tensor& only(const char* name, const std::vector<at::Tensor>& tensors);
void check_root(const char* name, int64_t root, int size);
// That a list has an entry for each rank.
void check_list(const char* name, size_t length, int size);
void check_type(const char* name, const at::Tensor& output, const at::Tensor& input);
// That `whole` has the elements of `part` for each rank.
void check_whole(const char* name, const at::Tensor& whole, const at::Tensor& part, int size);
// That both have one dtype and as many elements.
void check_same(const char* name, const at::Tensor& a, const at::Tensor& b);

}  // namespace anvil
