// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the linear layer. Plain data: no inline code is emitted from this header.
#pragma once

#include <cstdint>

namespace anvil::kernels {

// output = input x weight^T + bias, float32 arithmetic on half-precision weights.
struct LinearArgs {
  const float* input;      // [rows, depth], contiguous
  const uint16_t* weight;  // [columns, depth], bfloat16 or float16 bits
  const float* bias;       // [columns] or null
  float* output;           // [rows, columns], contiguous
  int64_t rows;
  int64_t columns;
  int64_t depth;
  int64_t weight_stride;  // elements between rows of the weight
  bool weight_is_fp16;    // bfloat16 otherwise
};

}  // namespace anvil::kernels
