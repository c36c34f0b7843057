// SPDX-License-Identifier: Apache-2.0
//
// The products of a few rows with a few strips, whose sums stay in registers.
//
// Every sum goes through the depth in the same order, whatever tile it is in: a row's result is the
// same bits whichever rows are beside it. A few steps at a time are summed by themselves and added
// to the rest: an input that is a thousand times the others, as models have some, would otherwise
// round away the last bits of all that is added behind it.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "gemm/packed_products-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Tiles of many rows have kPanelRows. So many rows that one tile holds them all may be more, up to
// kMostPanelRows, beside fewer strips: weights are then read once.
#if ANVIL_VECTOR_BYTES == 64
constexpr int kPanelRows = 6, kPanelStrips = 4, kMostPanelRows = 8;  // 24 sums of 32 registers
constexpr int strips_beside(int rows) { return rows > kPanelRows ? 3 : kPanelStrips; }
#elif ANVIL_VECTOR_BYTES == 32
constexpr int kPanelRows = 6, kPanelStrips = 1, kMostPanelRows = 6;  // 12 sums of 16 registers
constexpr int strips_beside(int) { return kPanelStrips; }
#else
constexpr int kPanelRows = 2, kPanelStrips = 1, kMostPanelRows = 2;
constexpr int strips_beside(int) { return kPanelStrips; }
#endif
constexpr int64_t kPanelColumns = kPanelStrips * kStripColumns;

// Beside so few rows that arithmetic is idle, strips are taken one by one: weights are then a
// single stream, which the processor fetches ahead by itself, and best when nothing else is asked
// for.
template <typename Product>
constexpr int panel_strips(int64_t rows) {
  return rows <= Product::kStreamedRows ? 1
         : rows <= kMostPanelRows       ? strips_beside(static_cast<int>(rows))
                                        : kPanelStrips;
}

// The most strips of a tile. Of more than kMostPanelRows rows tiles get half as many at least.
template <typename Product>
constexpr int tile_strips(int rows) {
  return 2 * rows < kMostPanelRows ? panel_strips<Product>(rows) : strips_beside(rows);
}

// The weights that are used after the present ones: `lines` cache lines of each of `strips` strips.
// They are asked for a few at a time, into the second cache: the first one has no room for as many
// requests under way as memory needs to be kept busy.
struct WeightsAhead {
  const char* strip;
  int64_t strip_bytes;
  int64_t strips;
  int64_t lines;
  int64_t line;  // the next

  [[gnu::always_inline]] void fetch(int64_t count) {
    for (; count > 0 && strips > 0; --count) {
      __builtin_prefetch(strip + line * 64, 0, 2);
      if (++line == lines) {
        line = 0;
        strip += strip_bytes;
        --strips;
      }
    }
  }
};

// What a tile computes; strides in elements.
template <typename Product>
struct TileWork {
  const typename Product::Input::Stored* input;
  int64_t input_stride;
  const typename Product::Weight::Stored* weight;
  int64_t strip_stride;
  int64_t steps;
  int64_t pairs_left;  // of a group that the depth ends within; behind the steps
  bool begin;          // the sums, rather than add to them
  float* sums;         // [rows][kPanelColumns]
  WeightsAhead& ahead;
  int64_t fetches;  // lines ahead that are asked for every kFetchSteps steps
};

// One phase of a step, and those behind it.
template <typename Product, int kPhase, int R, int S>
[[gnu::always_inline]] inline void multiply_step(const typename Product::Input::Stored* (&rows)[R],
                                                 int64_t at,
                                                 const typename Product::Weight::Stored* weight,
                                                 int64_t strip_stride,
                                                 Floats (&sums)[R][S * kStripRegisters]) {
  constexpr int64_t kRegister = Floats::kLanes * Product::kDepth;
  Floats columns[S * kStripRegisters];
#pragma GCC unroll 4
  for (int s = 0; s < S; ++s) {
#pragma GCC unroll 16
    for (int j = 0; j < kStripRegisters; ++j) {
      columns[s * kStripRegisters + j] =
          Product::template columns<kPhase>(weight + s * strip_stride + j * kRegister);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Floats x = Product::template value<kPhase>(rows[r] + at);
#pragma GCC unroll 16
    for (int c = 0; c < S * kStripRegisters; ++c) {
      sums[r][c] = Product::multiply_add(sums[r][c], x, columns[c]);
    }
  }
  if constexpr (kPhase + 1 < Product::kPhases) {
    multiply_step<Product, kPhase + 1, R, S>(rows, at, weight, strip_stride, sums);
  }
}

// What is kept of a group beside its rounded inputs.
template <typename Product, int R, int S>
[[gnu::always_inline]] inline void add_remainders(const typename Product::Input::Stored* (&rows)[R],
                                                  int64_t at,
                                                  const typename Product::Weight::Stored* weight,
                                                  int64_t strip_stride, Floats (&sums)[R][S]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Floats x = Product::remainder(rows[r] + at);
    const auto* kept = weight + Product::place(rows[r] + at);
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s) {
      const Floats columns = Product::template columns<0>(kept + s * strip_stride);
      sums[r][s] = Product::multiply_add(sums[r][s], x, columns);
    }
  }
}

// R rows by S strips.
template <typename Product, int R, int S>
inline void multiply_packed_tile(const TileWork<Product>& work) {
  constexpr int kColumns = S * kStripRegisters;
  constexpr int64_t kUnit = kStripColumns * Product::kDepth;
  Floats sums[R][kColumns];
  const typename Product::Input::Stored* rows[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) rows[r] = work.input + r * work.input_stride;
  WeightsAhead ahead = work.ahead;
  const int64_t strip_stride = work.strip_stride, fetches = work.fetches;
  const typename Product::Weight::Stored* weight = work.weight;
  int64_t at = 0, left = work.steps;
  bool begin = work.begin;
  const auto step = [&]() __attribute__((always_inline)) {
    multiply_step<Product, 0, R, S>(rows, at, weight, strip_stride, sums);
    if constexpr (Product::kKeepsRemainders) {
      add_remainders<Product, R, S>(rows, at, weight, strip_stride, sums);
    }
    at += Product::kInputStep;
    weight += kUnit;
  };
  do {
    int64_t steps = left < Product::kSumSteps ? left : Product::kSumSteps;
    left -= steps;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) sums[r][c] = Floats::zero();
    }
    for (; steps >= Product::kFetchSteps; steps -= Product::kFetchSteps) {
      ahead.fetch(fetches);
#pragma GCC unroll 2
      for (int64_t i = 0; i < Product::kFetchSteps; ++i) step();
    }
    if (steps > 0) ahead.fetch(fetches);
    for (; steps > 0; --steps) step();
    if constexpr (Product::kKeepsRemainders) {
      if (left == 0 && work.pairs_left > 0) {
        for (int64_t pair = 0; pair < work.pairs_left; ++pair) {
          multiply_step<typename Product::Pairs, 0, R, S>(
              rows, at + pair * 2, weight + pair * 2 * kStripColumns, strip_stride, sums);
        }
        add_remainders<Product, R, S>(rows, at, weight, strip_stride, sums);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) {
        float* total = work.sums + r * kPanelColumns + c * Floats::kLanes;
        (begin ? sums[r][c] : Floats::load(total) + sums[r][c]).store(total);
      }
    }
    begin = false;
  } while (left > 0);
  work.ahead = ahead;
}

// The tile with that many rows and strips, of those that have at most R and S.
template <typename Product, int R = kMostPanelRows, int S = tile_strips<Product>(R)>
inline void multiply_packed_tile_of(int64_t rows, int64_t strips, const TileWork<Product>& work) {
  if constexpr (R > 1 && S == tile_strips<Product>(R)) {
    if (rows < R) return multiply_packed_tile_of<Product, R - 1>(rows, strips, work);
  }
  if constexpr (S > 1) {
    if (strips < S) return multiply_packed_tile_of<Product, R, S - 1>(rows, strips, work);
  }
  multiply_packed_tile<Product, R, S>(work);
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
