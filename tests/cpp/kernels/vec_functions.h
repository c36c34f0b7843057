// SPDX-License-Identifier: Apache-2.0
//
// What csrc/kernels/vec computes, for one instruction set: kernels use it inline, so that no table
// has it. Plain data: no inline code is emitted from this header.
#pragma once

#include <cstdint>

namespace anvil::kernels {

struct VecFunctions {
  const char* isa;

  using OfFloats = void (*)(const float* x, int64_t count, float* results);
  OfFloats exp, log, tanh, sigmoid, erf, normal_cdf;

  using Narrow = void (*)(const float* x, int64_t count, uint16_t* results);
  Narrow to_bf16, to_fp16;

  using Widen = void (*)(const uint16_t* x, int64_t count, float* results);
  Widen of_bf16, of_fp16;
};

}  // namespace anvil::kernels
