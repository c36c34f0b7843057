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

  // Elements of KV caches, one byte each: int8 as the byte that it is.
  struct ByteElement {
    void (*narrow)(const float* x, int64_t count, uint8_t* results);
    void (*widen)(const uint8_t* x, int64_t count, float* results);
    float (*widen_one)(uint8_t x);
    // As bfloat16, by 32; null where registers are smaller.
    void (*widen_to_bf16)(const uint8_t* x, int64_t count, uint16_t* results);
  };
  ByteElement e4m3, e5m2, int8;
};

}  // namespace anvil::kernels
