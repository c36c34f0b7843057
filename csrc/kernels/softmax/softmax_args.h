// SPDX-License-Identifier: Apache-2.0
//
// Arguments of softmax. Plain data: no inline code is emitted from this header.
#pragma once

#include <cstdint>

#include "vec/rows.h"

namespace anvil::kernels {

// output = exp(input) / sum(exp(input)), or the logarithm of that.
struct SoftmaxArgs {
  Rows input;   // [rows, size]
  Rows output;  // float32
  int64_t size;
  bool logarithm;
};

}  // namespace anvil::kernels
