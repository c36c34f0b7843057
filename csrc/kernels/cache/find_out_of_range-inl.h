// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

template <typename Index>
struct IndexLimits;
template <>
struct IndexLimits<int64_t> {
  static constexpr int64_t kLeast = INT64_MIN, kGreatest = INT64_MAX;
};
template <>
struct IndexLimits<int32_t> {
  static constexpr int64_t kLeast = INT32_MIN, kGreatest = INT32_MAX;
};

template <typename Index>
inline int64_t find_index_out_of_range(const Index* values, int64_t count, int64_t stride,
                                       int64_t low, int64_t high) {
  using Limits = IndexLimits<Index>;
  if (high <= low || low > Limits::kGreatest || high - 1 < Limits::kLeast) {
    return count > 0 ? 0 : -1;
  }
  // Bounds of the values' own type, both inclusive: comparisons then fill a whole register.
  const Index least = static_cast<Index>(low < Limits::kLeast ? Limits::kLeast : low);
  const Index greatest =
      static_cast<Index>(high - 1 > Limits::kGreatest ? Limits::kGreatest : high - 1);
  // Whole chunks without an early exit, which the compiler can vectorise; the index is looked for
  // only in a chunk that is known to hold it.
  constexpr int64_t kChunk = 512;
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t end = begin + kChunk < count ? begin + kChunk : count;
    Index outside = 0;
    for (int64_t i = begin; i < end; ++i) {
      const Index value = values[i * stride];
      outside |= static_cast<Index>(value < least) | static_cast<Index>(value > greatest);
    }
    if (!outside) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (values[i * stride] < least || values[i * stride] > greatest) return i;
    }
  }
  return -1;
}

inline int64_t find_out_of_range(const int64_t* values, int64_t count, int64_t stride, int64_t low,
                                 int64_t high) {
  // A constant stride is what lets consecutive values be loaded together.
  return stride == 1 ? find_index_out_of_range(values, count, 1, low, high)
                     : find_index_out_of_range(values, count, stride, low, high);
}

inline int64_t find_out_of_range_int32(const int32_t* values, int64_t count, int64_t stride,
                                       int64_t low, int64_t high) {
  return stride == 1 ? find_index_out_of_range(values, count, 1, low, high)
                     : find_index_out_of_range(values, count, stride, low, high);
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
