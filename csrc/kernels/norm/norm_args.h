// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the norms. Plain data: no inline code is emitted from this header.
#pragma once

#include <cstdint>

#include "vec/rows.h"

namespace anvil::kernels {

// row / sqrt(mean(row[:variance_size]^2) + epsilon) * (weight + weight_offset)
struct RmsNormParameters {
  Parameters weight;  // [size]; without data: the rows are not weighed at all
  int64_t size;
  int64_t variance_size;  // from 1 to size
  double epsilon;
  float weight_offset;
};

// The output is the norm of total = input + residual. Rows may be written over the rows that they
// are computed from.
struct RmsNormArgs {
  Rows input;     // [rows, size]
  Rows residual;  // likewise; without data: 0
  Rows output;    // of the input's type
  Rows total;     // of the residual's type; not used without one
  RmsNormParameters norm;
};

// output = (input - mean) / sqrt(variance + epsilon) * weight + bias
struct LayerNormArgs {
  Rows input;         // [rows, size]
  Rows output;        // of the input's type
  Parameters weight;  // [size] or without data
  Parameters bias;    // likewise, and of the weight's type
  int64_t size;
  double epsilon;
};

}  // namespace anvil::kernels
