// SPDX-License-Identifier: Apache-2.0
//
// The matrix products of a tile, both of the form result[i][lane] = sum over steps of
// a(i, step) * b[step][lane], in units: logits (i: keys, lanes: rows, steps: columns) and values by
// weights (i: columns, lanes: rows, steps: keys). With the rows in the lanes neither needs a sum
// over lanes, nor the softmax between them.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "attention/products-inl.h"
#include "attention/query_rows-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Results that are kept in registers at once: kTileDepth by kTileStrips registers.
#if ANVIL_VECTOR_BYTES == 64
constexpr int kTileDepth = 8, kTileStrips = 3;
#elif ANVIL_VECTOR_BYTES == 32
constexpr int kTileDepth = 4, kTileStrips = 2;
#else
constexpr int kTileDepth = 4, kTileStrips = 4;
#endif
constexpr int64_t kMostTileRows = kTileStrips * Floats::kLanes;
static_assert(kColumnStep % kTileDepth == 0);

// kTileDepth rows of the result, of kStrips registers. Strides in units; `a` is advanced by a_step
// from step to step and by a_stride from row to row, and b and result have kStrips registers a row.
template <typename Product, int kStrips, bool kAdd>
inline void multiply_tile(const float* a, int64_t a_stride, int64_t a_step, const float* b,
                          int64_t steps, float* result) {
  constexpr int64_t kRow = kStrips * Floats::kLanes;
  Floats sums[kTileDepth][kStrips];
#pragma GCC unroll 8
  for (int i = 0; i < kTileDepth; ++i) {
#pragma GCC unroll 3
    for (int s = 0; s < kStrips; ++s) {
      sums[i][s] = kAdd ? Floats::load(result + i * kRow + s * Floats::kLanes) : Floats::zero();
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    Floats right[kStrips];
#pragma GCC unroll 3
    for (int s = 0; s < kStrips; ++s) right[s] = Floats::load(b + s * Floats::kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kTileDepth; ++i) {
      const Floats left = Floats::all(a[i * a_stride]);
#pragma GCC unroll 3
      for (int s = 0; s < kStrips; ++s) {
        sums[i][s] = Product::multiply_add(sums[i][s], left, right[s]);
      }
    }
    a += a_step;
    b += kRow;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kTileDepth; ++i) {
#pragma GCC unroll 3
    for (int s = 0; s < kStrips; ++s) {
      sums[i][s].store(result + i * kRow + s * Floats::kLanes);
    }
  }
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
