// SPDX-License-Identifier: Apache-2.0
// Tensors as the rows that kernels go through, one after the other.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "ops/checks.h"
#include "vec/rows.h"

namespace anvil::ops {

// Checks that a tensor has a last dimension and is float32, bfloat16 or float16.
void check_floats(const Checks& check, const at::Tensor& tensor, const char* name);

// The tensor itself, if kernels can read it as rows; otherwise a copy without gaps: where the last
// dimension has some, or too many others lie crosswise.
at::Tensor readable_rows(const at::Tensor& tensor);

// Checks that a tensor can be written to as rows where it lies.
void check_writable_rows(const Checks& check, const at::Tensor& tensor, const char* name);

// The rows of a tensor that readable_rows() gave or check_writable_rows() passed.
kernels::Rows rows_of(const at::Tensor& tensor);

// How many rows, each the last dimension of the tensor; 0 where they are empty.
int64_t count_rows(const at::Tensor& tensor);

// `parameter` without gaps, or an undefined tensor if there is none. It must have `size` elements,
// on x's device.
at::Tensor parameter_of(const Checks& check, const std::optional<at::Tensor>& parameter,
                        const char* name, const at::Tensor& x, int64_t size);

kernels::Parameters parameters_of(const at::Tensor& parameter);

}  // namespace anvil::ops
