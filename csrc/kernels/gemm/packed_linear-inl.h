// SPDX-License-Identifier: Apache-2.0
//
// Linear layers over packed weights. A panel of a few strips is taken in chunks over the depth that
// stay in the second cache while a block of rows goes by, and the next chunk is fetched meanwhile.
// Few rows are the same with one tile: weights then go by once, as fast as memory gives them.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "gemm/linear_input-inl.h"
#include "gemm/packed_tile-inl.h"
#include "vec/bytes-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Elements of the depth that a chunk has at most.
constexpr int64_t kChunkDepth = 512;

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
  // Part `part` of `parts` that share it as evenly as whole numbers can.
  Range share(int64_t part, int64_t parts) const {
    return {begin + size() * part / parts, begin + size() * (part + 1) / parts};
  }
};

inline int64_t parts_of(int64_t count, int64_t largest) { return (count + largest - 1) / largest; }

// Adds the bias and stores the outputs of a panel.
template <typename To>
inline void store_panel(const PackedLinearArgs& args, const float* sums, Range rows, Range strips) {
  const int64_t column = strips.begin * kStripColumns, end = strips.end * kStripColumns;
  const int64_t size = (end < args.columns ? end : args.columns) - column;
  for (int64_t row = rows.begin; row < rows.end; ++row, sums += kPanelColumns) {
    auto* to = static_cast<typename To::Stored*>(args.output) + row * args.columns + column;
    if (args.bias == nullptr) {
      convert_row<Float32, To>(sums, to, size);
      continue;
    }
    with_element(args.bias_type, [&](auto type) {
      using Bias = decltype(type);
      const auto* bias = static_cast<const typename Bias::Stored*>(args.bias) + column;
      for_registers(size, [&](int64_t i, auto part) {
        To::store(Float32::load(sums + i, part) + Bias::load(bias + i, part), to + i, part);
      });
    });
  }
}

// The outputs of some rows in some strips.
template <typename Product>
inline void multiply_block(const PackedLinearArgs& args, Range rows, Range strips) {
  using Stored = typename Product::Weight::Stored;
  using Input = typename Product::Input::Stored;
  constexpr int64_t kStep = kStripColumns * Product::kDepth;
  constexpr int64_t kStepBytes = kStep * static_cast<int64_t>(sizeof(Stored));
  constexpr int64_t kPair = 2;
  const int64_t depth = packed_depth<Product>(args);
  const Range steps = {0, depth / Product::kDepth};
  const int64_t pairs_left = depth % Product::kDepth / kPair;
  const int64_t strip_stride = depth * kStripColumns;
  const bool one_tile = rows.size() <= kMostPanelRows;
  const bool streamed = rows.size() <= Product::kStreamedRows;
  const int64_t panels = parts_of(strips.size(), panel_strips<Product>(rows.size()));
  const int64_t tiles = one_tile ? 1 : parts_of(rows.size(), kPanelRows);
  // Without steps there is one chunk, too: it begins the sums.
  const int64_t chunks = steps.end == 0 ? 1 : parts_of(steps.end, kChunkDepth / Product::kDepth);
  alignas(64) float sums[kBlockRows * kPanelColumns];
  const bool prepared = args.prepared != nullptr;
  const auto* input = static_cast<const Input*>(prepared ? args.prepared : args.input);
  const int64_t input_stride = prepared ? prepared_size<Product>(args) : args.input_stride;

  const auto weights_of = [&](Range panel, Range chunk) {
    return static_cast<const Stored*>(args.weight) + panel.begin * strip_stride +
           chunk.begin * kStep;
  };
  for (int64_t p = 0; p < panels; ++p) {
    const Range panel = strips.share(p, panels);
    for (int64_t c = 0; c < chunks; ++c) {
      const Range chunk = steps.share(c, chunks);
      WeightsAhead ahead = {nullptr, strip_stride * static_cast<int64_t>(sizeof(Stored)), 0, 0, 0};
      const bool more = c + 1 < chunks;
      if (!streamed && chunk.size() > 0 && (more || p + 1 < panels)) {
        const Range next_panel = more ? panel : strips.share(p + 1, panels);
        const Range next_chunk = steps.share(more ? c + 1 : 0, chunks);
        ahead.strip = reinterpret_cast<const char*>(weights_of(next_panel, next_chunk));
        ahead.strips = next_panel.size();
        ahead.lines = parts_of(next_chunk.size() * kStepBytes, 64);
      }
      const int64_t looks = tiles * parts_of(chunk.size(), Product::kFetchSteps);
      const int64_t fetches = ahead.strips > 0 ? parts_of(ahead.strips * ahead.lines, looks) : 0;
      for (int64_t t = 0; t < tiles; ++t) {
        const Range tile = rows.share(t, tiles);
        multiply_packed_tile_of<Product>(
            tile.size(), panel.size(),
            {input + tile.begin * input_stride + chunk.begin * Product::kInputStep, input_stride,
             weights_of(panel, chunk), strip_stride, chunk.size(), more ? 0 : pairs_left, c == 0,
             sums + (tile.begin - rows.begin) * kPanelColumns, ahead, fetches});
      }
    }
    with_element(args.output_type,
                 [&](auto to) { store_panel<decltype(to)>(args, sums, rows, panel); });
  }
}

template <typename Product>
inline void multiply_blocks(const PackedLinearArgs& args, int64_t begin, int64_t end) {
  const int64_t strips = parts_of(args.columns, kStripColumns);
  while (begin < end) {
    const int64_t block = begin / strips, first = begin % strips;
    const int64_t count = end - begin < strips - first ? end - begin : strips - first;
    const Range rows = Range{0, args.rows}.share(block, args.row_blocks);
    multiply_block<Product>(args, rows, {first, first + count});
    begin += count;
  }
}

inline void packed_linear(const PackedLinearArgs& args, int64_t begin, int64_t end) {
  with_product(args, [&](auto product) { multiply_blocks<decltype(product)>(args, begin, end); });
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
