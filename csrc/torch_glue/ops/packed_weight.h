// SPDX-License-Identifier: Apache-2.0
// The tensors that hold packed weights; csrc/kernels/gemm/packed_linear_args.h says what is in
// them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "gemm/packed_linear_args.h"
#include "ops/checks.h"

namespace anvil::ops {

// Strips of that many columns.
int64_t strips_of(int64_t columns);

// The shape of a packed weight [columns, depth].
std::vector<int64_t> packed_shape(kernels::ElementType type, int64_t columns, int64_t depth);

// That a tensor is a packed weight [columns, depth]; its type.
kernels::ElementType check_packed(const Checks& check, const at::Tensor& packed, int64_t columns,
                                  int64_t depth);

// What of an input is rounded to `input_dtype`, the weights' type where it is given.
kernels::InputRounding input_rounding(const Checks& check, at::ScalarType weight_type,
                                      std::optional<at::ScalarType> input_dtype,
                                      bool keep_remainders);

}  // namespace anvil::ops
