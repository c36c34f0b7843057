// SPDX-License-Identifier: Apache-2.0
//
// The softmax of a tile, block by block of keys: rows are the lanes, and that of each goes on in
// its own.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "attention/query_rows-inl.h"
#include "attention/tile_product-inl.h"
#include "vec/math-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// What a lane's row is, where one must know.
struct TileLanes {
  float first[kMostTileRows], last[kMostTileRows], position[kMostTileRows], slope[kMostTileRows];
  float max[kMostTileRows], sum[kMostTileRows], factor[kMostTileRows];
  Visible all;  // keys that every lane sees
};

template <int kStrips>
inline void describe_lanes(const QueryRows& rows, int64_t key_begin, int64_t key_end,
                           TileLanes& lanes) {
  lanes.all = {key_begin, key_end - 1};
  for (int64_t lane = 0; lane < kStrips * Floats::kLanes; ++lane) {
    // Lanes without a row have a query of zeros, and see what every row sees.
    const bool used = lane < rows.count;
    Visible seen = {0, INT32_MAX};
    if (used) seen = rows.visible(lane);
    lanes.all.first = larger(lanes.all.first, seen.first);
    lanes.all.last = smaller(lanes.all.last, seen.last);
    lanes.first[lane] = static_cast<float>(larger(seen.first, key_begin));
    lanes.last[lane] = static_cast<float>(smaller(seen.last, key_end - 1));
    lanes.position[lane] = used ? static_cast<float>(rows.position(lane)) : 0.0f;
    lanes.slope[lane] = used && rows.args.alibi_slopes != nullptr
                            ? rows.args.alibi_slopes[rows.head(lane)] * -kLog2e
                            : 0.0f;
    lanes.max[lane] = kNoneSeen;
    lanes.sum[lane] = 0.0f;
  }
}

// Logits of the `count` keys from `key` on in powers of two, where that takes more than a factor.
template <int kStrips>
inline void finish_logits(const AttentionArgs& args, const TileLanes& lanes, int64_t key,
                          int64_t count, float* logits) {
  for (int64_t i = 0; i < count; ++i) {
    const Floats position = Floats::all(static_cast<float>(key + i));
    for (int64_t lane = 0; lane < kStrips * Floats::kLanes; lane += Floats::kLanes) {
      Floats x = Floats::load(logits + lane) * Floats::all(args.scale);
      if (args.soft_cap > 0) {
        x = tanh(x * Floats::all(1.0f / args.soft_cap)) * Floats::all(args.soft_cap);
      }
      x = x * Floats::all(kLog2e);
      if (args.alibi_slopes != nullptr) {
        const Floats distance = (position - Floats::load(lanes.position + lane)).magnitude();
        x = distance.multiply_add(Floats::load(lanes.slope + lane), x);
      }
      x.store(logits + lane);
    }
    logits += kStrips * Floats::kLanes;
  }
}

template <int kStrips>
inline void hide_keys(const TileLanes& lanes, int64_t key, int64_t count, float* logits) {
  const Floats hidden = Floats::all(kHidden);
  for (int64_t i = 0; i < count; ++i) {
    const Floats position = Floats::all(static_cast<float>(key + i));
    for (int64_t lane = 0; lane < kStrips * Floats::kLanes; lane += Floats::kLanes) {
      const LaneBits seen = position.at_least(Floats::load(lanes.first + lane)) &
                            Floats::load(lanes.last + lane).at_least(position);
      Floats::load(logits + lane).where(seen, hidden).store(logits + lane);
    }
    logits += kStrips * Floats::kLanes;
  }
}

// The sum over the first `count` units of a column, which are `stride` floats apart, in the order
// in which units in registers are added: lane by lane, then the halves of the register.
template <typename Product>
inline Floats sum_of_units(const float* column, int64_t stride, int64_t count) {
  Floats sums[Floats::kLanes];
#pragma GCC unroll 16
  for (int64_t lane = 0; lane < Floats::kLanes; ++lane) {
    Floats sum = Floats::zero();
    for (int64_t unit = lane; unit < count; unit += Floats::kLanes) {
      sum = Product::add_weights(sum, Floats::load(column + unit * stride));
    }
    sums[lane] = sum;
  }
  for (int64_t half = Floats::kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) sums[lane] = sums[lane] + sums[lane + half];
  }
  return sums[0];
}

// Logits times `factor` become weights, as units in their place. Whether sums have to be multiplied
// by lanes.factor before they take them.
template <typename Product, int kStrips>
inline bool weigh_block(float* logits, int64_t count, float factor, TileLanes& lanes) {
  constexpr int64_t kRow = kStrips * Floats::kLanes;
  constexpr bool kForHalf = Product::kPerUnit > 1;
  bool raised = false;
  for (int64_t lane = 0; lane < kRow; lane += Floats::kLanes) {
    float* column = logits + lane;
    Floats most = Floats::load(column), other = Floats::load(column + kRow);
    for (int64_t i = 2; i < count; i += 2) {
      most = most.max(Floats::load(column + i * kRow));
      other = other.max(Floats::load(column + (i + 1) * kRow));
    }
    most = most.max(other) * Floats::all(factor);
    Floats max = Floats::load(lanes.max + lane), change = Floats::all(1.0f);
    const LaneBits above = most.greater(max + Floats::all(kSlack));
    if (above != 0) {
      const Floats now = most.where(above, max);
      change = exp2<false>(max - now);
      max = now;
      max.store(lanes.max + lane);
      raised = true;
    }
    change.store(lanes.factor + lane);
    const Floats shift = Floats::zero() - max, by = Floats::all(factor);
    for (int64_t i = 0; i < count; i += Product::kPerUnit) {
      Floats weights[Product::kPerUnit];
      for (int j = 0; j < Product::kPerUnit; ++j) {
        weights[j] = exp2<kForHalf>(Floats::load(column + (i + j) * kRow).multiply_add(by, shift));
      }
      Product::unit_of(weights).store(column + i / Product::kPerUnit * kRow);
    }
    const Floats more = sum_of_units<Product>(column, kRow, count / Product::kPerUnit);
    Floats::load(lanes.sum + lane).multiply_add(change, more).store(lanes.sum + lane);
  }
  return raised;
}

template <int kStrips>
inline void scale_sums(const TileLanes& lanes, int64_t columns, float* out) {
  for (int64_t i = 0; i < columns; ++i) {
    for (int64_t lane = 0; lane < kStrips * Floats::kLanes; lane += Floats::kLanes) {
      (Floats::load(out) * Floats::load(lanes.factor + lane)).store(out);
      out += Floats::kLanes;
    }
  }
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
