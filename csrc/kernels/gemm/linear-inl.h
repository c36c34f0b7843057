// SPDX-License-Identifier: Apache-2.0
//
// Linear layers over weights as they lie in a checkpoint: [columns, depth], half precision.
//
// Every output is one sum over the depth in a fixed order (lanes, then the tail), whatever tile it
// is computed in: a row's result does not depend on the rows beside it.
#pragma once

#include <cstdint>

#include "gemm/linear_args.h"
#include "vec/elements-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

#if ANVIL_VECTOR_BYTES == 64
constexpr int kTileRows = 4, kTileColumns = 4;  // 16 sums of 32 registers
#else
constexpr int kTileRows = 2, kTileColumns = 4;  // 8 sums of 16 registers
#endif
constexpr int kStreamColumns = 8;    // one row: enough sums in flight to hide their latency
constexpr int64_t kRowsAtOnce = 64;  // input rows that stay in the cache while weights go by

// Outputs [row, row + R) x [column, column + C).
template <typename Half, int R, int C>
inline void linear_tile(const LinearArgs& args, int64_t row, int64_t column) {
  const float* input = args.input + row * args.depth;
  const uint16_t* weight = args.weight + column * args.weight_stride;
  Floats sums[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) sums[r][c] = Floats::zero();
  }
  int64_t k = 0;
  for (; k + Floats::kLanes <= args.depth; k += Floats::kLanes) {
    Floats w[C];
    for (int c = 0; c < C; ++c) w[c] = Half::load(weight + c * args.weight_stride + k);
    for (int r = 0; r < R; ++r) {
      const Floats x = Floats::load(input + r * args.depth + k);
      for (int c = 0; c < C; ++c) sums[r][c].add_product(x, w[c]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      float sum = sums[r][c].sum();
      for (int64_t tail = k; tail < args.depth; ++tail) {
        sum += input[r * args.depth + tail] * Half::widen(weight[c * args.weight_stride + tail]);
      }
      if (args.bias != nullptr) sum += args.bias[column + c];
      args.output[(row + r) * args.columns + column + c] = sum;
    }
  }
}

// C columns of the rows [row, end).
template <typename Half, int C>
inline void linear_columns(const LinearArgs& args, int64_t row, int64_t end, int64_t column) {
  for (; row + kTileRows <= end; row += kTileRows) {
    linear_tile<Half, kTileRows, C>(args, row, column);
  }
  for (; row < end; ++row) linear_tile<Half, 1, C>(args, row, column);
}

template <typename Half>
inline void linear_range(const LinearArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = 0; row < args.rows; row += kRowsAtOnce) {
    const int64_t last = row + kRowsAtOnce < args.rows ? row + kRowsAtOnce : args.rows;
    int64_t column = begin;
    if (last - row < kTileRows) {
      for (; column + kStreamColumns <= end; column += kStreamColumns) {
        for (int64_t r = row; r < last; ++r) linear_tile<Half, 1, kStreamColumns>(args, r, column);
      }
    }
    for (; column + kTileColumns <= end; column += kTileColumns) {
      linear_columns<Half, kTileColumns>(args, row, last, column);
    }
    for (; column < end; ++column) linear_columns<Half, 1>(args, row, last, column);
  }
}

inline void linear(const LinearArgs& args, int64_t begin, int64_t end) {
  if (args.weight_is_fp16) {
    linear_range<Fp16>(args, begin, end);
  } else {
    linear_range<Bf16>(args, begin, end);
  }
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
