// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the gated activations. Plain data: no inline code is emitted from this header.
#pragma once

#include <cstdint>

#include "vec/rows.h"

namespace anvil::kernels {

enum class Gate : uint8_t {
  kSilu,      // x / (1 + exp(-x))
  kGelu,      // x (1 + erf(x / sqrt 2)) / 2
  kGeluTanh,  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
};

// output = gate(input[:, :size]) * input[:, size:]
struct GateAndMulArgs {
  Rows input;   // [rows, 2 * size]
  Rows output;  // [rows, size], of the input's type
  int64_t size;
  Gate gate;
};

}  // namespace anvil::kernels
