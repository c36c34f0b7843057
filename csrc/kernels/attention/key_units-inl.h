// SPDX-License-Identifier: Apache-2.0
//
// Logits of several rows at once: keys are the lanes. Rows of keys are transposed once for all rows
// of the query, whose products with them then need no sums over lanes.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "attention/few_rows_products-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Groups of keys, and rows, that are multiplied at once.
constexpr int kStrips = 2;
#if ANVIL_VECTOR_BYTES == 64
constexpr int kRowsOfUnits = 8;
#else
constexpr int kRowsOfUnits = 4;
#endif

// A group of keys as units, those of a column in a register. Strips lie beside each other.
template <typename Product>
inline void transpose_keys(const KeyGroup<Product>& group, int64_t columns, float* units) {
  constexpr int64_t kRegister = Floats::kLanes * Product::kPerUnit;
  for (int64_t column = 0; column < columns; column += kRegister) {
    Floats block[kGroupKeys];
    const typename Product::Cached* key = group.keys + column;
#pragma GCC unroll 16
    for (int64_t i = 0; i < kGroupKeys; ++i, key += group.key_stride) block[i] = Product::load(key);
    Floats::transpose(block);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kGroupKeys; ++i, units += kStrips * kGroupKeys) block[i].store(units);
  }
}

// Logits of kRows rows with the keys of the first kGroups strips, of `count` units each.
template <typename Product, int kTerms, int kRows, int kGroups>
inline void multiply_strips(const typename Product::Stored* query, int64_t query_stride,
                            int64_t term_distance, const float* units, int64_t count,
                            float* logits) {
  Floats sums[kRows][kGroups];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    for (int g = 0; g < kGroups; ++g) sums[r][g] = Floats::zero();
  }
  for (int64_t unit = 0; unit < count; ++unit) {
    Floats keys[kGroups];
    for (int g = 0; g < kGroups; ++g) keys[g] = Floats::load(units + g * kGroupKeys);
    units += kStrips * kGroupKeys;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      for (int t = 0; t < kTerms; ++t) {
        const Floats row = all_units(query + r * query_stride + t * term_distance);
        for (int g = 0; g < kGroups; ++g) {
          sums[r][g] = Product::multiply_add(sums[r][g], row, keys[g]);
        }
      }
    }
    query += Product::kPerUnit;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    for (int g = 0; g < kGroups; ++g) sums[r][g].store(logits + r * kChunkKeys + g * kGroupKeys);
  }
}

// Logits of all rows with the keys of `strips` strips.
template <typename Product, int kTerms>
inline void multiply_key_units(const typename Product::Stored* query, int64_t rows,
                               int64_t term_distance, int64_t columns, const float* units,
                               int64_t strips, float* logits) {
  for_rows_together<kRowsOfUnits>(rows, [&](int64_t row, auto count) {
    constexpr int kRows = decltype(count)::kCount;
    const auto multiply = strips == kStrips ? multiply_strips<Product, kTerms, kRows, kStrips>
                                            : multiply_strips<Product, kTerms, kRows, 1>;
    multiply(query + row * columns, columns, term_distance, units, columns / Product::kPerUnit,
             logits + row * kChunkKeys);
  });
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
