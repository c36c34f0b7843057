// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

inline int64_t find_out_of_range(const int64_t* values, int64_t count, int64_t stride, int64_t low,
                                 int64_t high) {
  // Whole chunks without an early exit, which the compiler can vectorise; the index is looked for
  // only in a chunk that is known to hold it.
  constexpr int64_t kChunk = 512;
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t end = begin + kChunk < count ? begin + kChunk : count;
    int64_t outside = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t value = values[i * stride];
      outside |= static_cast<int64_t>(value < low) | static_cast<int64_t>(value >= high);
    }
    if (!outside) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (values[i * stride] < low || values[i * stride] >= high) return i;
    }
  }
  return -1;
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
