// SPDX-License-Identifier: Apache-2.0
//
// Attention of a tile of rows, as a prompt has: rows are the lanes, so that the softmax of each
// goes on in its own lane, and blocks of keys and values are copied once for all of them.
//
// What is computed for a row depends on its keys alone, not on the rows beside it: blocks begin at
// multiples of kBlockKeys, and one of which a row sees nothing changes nothing.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "attention/cache_rows-inl.h"
#include "attention/query_rows-inl.h"
#include "attention/tile_product-inl.h"
#include "vec/math-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

constexpr int64_t kBlockKeys = 64;

template <typename Product>
struct TileScratch {
  using Stored = typename Product::Stored;
  float* query;    // units, [key columns / kPerUnit][lanes]
  Stored* keys;    // [kBlockKeys][key columns]; the rows' query before there are keys
  Stored* values;  // [kBlockKeys][value columns]
  float* units;    // of the values, [kBlockKeys / kPerUnit][value columns]
  float* logits;   // [kBlockKeys][lanes]; weights in their place, as units
  float* out;      // [value columns][lanes]
};

// What a lane's row is, where one must know.
struct TileLanes {
  float first[kMostTileRows], last[kMostTileRows], position[kMostTileRows], slope[kMostTileRows];
  float max[kMostTileRows], sum[kMostTileRows], factor[kMostTileRows];
  Visible all;  // keys that every lane sees
};

// Rows of the query as units, [lanes][units], become [units][lanes].
template <int kStrips>
inline void place_query(const float* rows, int64_t units, float* to) {
  constexpr int64_t kRow = kStrips * Floats::kLanes;
  for (int64_t strip = 0; strip < kStrips; ++strip) {
    for (int64_t unit = 0; unit < units; unit += Floats::kLanes) {
      Floats block[Floats::kLanes];
      for (int64_t i = 0; i < Floats::kLanes; ++i) {
        block[i] = Floats::load(rows + (strip * Floats::kLanes + i) * units + unit);
      }
      Floats::transpose(block);
      for (int64_t i = 0; i < Floats::kLanes; ++i) {
        block[i].store(to + (unit + i) * kRow + strip * Floats::kLanes);
      }
    }
  }
}

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
    Floats max = Floats::load(lanes.max + lane), total = Floats::load(lanes.sum + lane);
    const LaneBits above = most.greater(max + Floats::all(kSlack));
    if (above != 0) {
      const Floats now = most.where(above, max);
      const Floats change = exp2<false>(max - now);
      change.store(lanes.factor + lane);
      total = total * change;
      max = now;
      max.store(lanes.max + lane);
      raised = true;
    } else {
      Floats::all(1.0f).store(lanes.factor + lane);
    }
    const Floats shift = Floats::zero() - max, by = Floats::all(factor);
    for (int64_t i = 0; i < count; i += Product::kPerUnit) {
      Floats weights[Product::kPerUnit];
      for (int j = 0; j < Product::kPerUnit; ++j) {
        weights[j] = exp2<kForHalf>(Floats::load(column + (i + j) * kRow).multiply_add(by, shift));
      }
      const Floats unit = Product::unit_of(weights);
      total = Product::add_weights(total, unit);
      unit.store(column + i / Product::kPerUnit * kRow);
    }
    total.store(lanes.sum + lane);
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

template <int kStrips>
inline void store_states(const TileLanes& lanes, const float* out, int64_t count,
                         const RowStates& states) {
  constexpr int64_t kRow = kStrips * Floats::kLanes;
  for (int64_t strip = 0; strip * Floats::kLanes < count; ++strip) {
    const int64_t row = strip * Floats::kLanes;
    for (int64_t column = 0; column < states.columns; column += Floats::kLanes) {
      Floats block[Floats::kLanes];
      for (int64_t i = 0; i < Floats::kLanes; ++i) {
        block[i] = Floats::load(out + (column + i) * kRow + row);
      }
      Floats::transpose(block);
      for (int64_t i = 0; i < smaller(Floats::kLanes, count - row); ++i) {
        block[i].store(states.out + (row + i) * states.columns + column);
      }
    }
  }
  for (int64_t row = 0; row < count; ++row) {
    states.max[row] = lanes.max[row];
    states.sum[row] = lanes.sum[row];
  }
}

// Logits of `count` keys from `key` on: rows of keys, or copies of them, by the query.
template <typename Product, int kStrips>
inline void multiply_keys(const CacheRows& keys, int64_t key, int64_t count, int64_t begin,
                          int64_t end, int64_t size, int64_t columns,
                          const TileScratch<Product>& scratch) {
  constexpr int64_t kRow = kStrips * Floats::kLanes, kUnit = sizeof(float);
  const int64_t units = columns / Product::kPerUnit;
  const bool whole = in_place<Product>(keys, size, columns) && begin <= key && key + count <= end &&
                     keys.block_size % kTileDepth == 0 && keys.token_stride % kUnit == 0;
  if (!whole) copy_cache_rows<Product>(keys, key, count, begin, end, size, scratch.keys, columns);
  for (int64_t i = 0; i < count; i += kTileDepth) {
    const char* rows =
        whole ? keys.row(key + i) : reinterpret_cast<const char*>(scratch.keys + i * columns);
    multiply_tile<Product, kStrips, false>(reinterpret_cast<const float*>(rows),
                                           whole ? keys.token_stride / kUnit : units, 1,
                                           scratch.query, units, scratch.logits + i * kRow);
  }
}

// Adds the values of these keys by their weights.
template <typename Product, int kStrips>
inline void multiply_values(const CacheRows& values, int64_t key, int64_t count, int64_t begin,
                            int64_t end, int64_t size, int64_t columns,
                            const TileScratch<Product>& scratch) {
  constexpr int64_t kRow = kStrips * Floats::kLanes;
  constexpr int64_t kStored = sizeof(typename Product::Stored);
  float* units = scratch.units;
  if (in_place<Product>(values, size, columns) && begin <= key && key + count <= end &&
      values.block_size % Product::kPerUnit == 0) {
    for_cache_blocks(values, key, key + count, [&](int64_t, const char* row, int64_t rows) {
      for (int64_t i = 0; i < rows; i += Product::kPerUnit, units += columns) {
        Product::units_of_rows(reinterpret_cast<const typename Product::Stored*>(row),
                               values.token_stride / kStored, columns, units);
        row += Product::kPerUnit * values.token_stride;
      }
    });
  } else {
    copy_cache_rows<Product>(values, key, count, begin, end, size, scratch.values, columns);
    for (int64_t i = 0; i < count; i += Product::kPerUnit, units += columns) {
      Product::units_of_rows(scratch.values + i * columns, columns, columns, units);
    }
  }
  for (int64_t column = 0; column < columns; column += kTileDepth) {
    multiply_tile<Product, kStrips, true>(scratch.units + column, 1, columns, scratch.logits,
                                          count / Product::kPerUnit, scratch.out + column * kRow);
  }
}

// The states of the rows over the keys [key_begin, key_end).
template <typename Product, int kStrips>
inline void attend_tile(const QueryRows& rows, int64_t key_begin, int64_t key_end,
                        const TileScratch<Product>& scratch, const RowStates& states) {
  constexpr int64_t kRow = kStrips * Floats::kLanes;
  const AttentionArgs& args = rows.args;
  const int64_t key_columns = padded_columns(args.head_size), value_columns = states.columns;
  const CacheRows keys(rows, args.keys), values(rows, args.values);
  TileLanes lanes;
  describe_lanes<kStrips>(rows, key_begin, key_end, lanes);
  static_assert(kMostTileRows <= kBlockKeys);
  for (int64_t lane = 0; lane < kRow; ++lane) {
    load_query<Product, 1>(rows, lane, scratch.keys + lane * key_columns, 0, key_columns);
  }
  place_query<kStrips>(reinterpret_cast<const float*>(scratch.keys),
                       key_columns / Product::kPerUnit, scratch.query);
  for (int64_t i = 0; i < value_columns * kRow; i += Floats::kLanes) {
    Floats::zero().store(scratch.out + i);
  }
  // A factor that is not positive would turn what is hidden into the largest.
  const bool plain = args.soft_cap == 0 && args.alibi_slopes == nullptr && args.scale > 0;
  const float factor = plain ? args.scale * kLog2e : 1.0f;

  for (int64_t key = key_begin / kBlockKeys * kBlockKeys; key < key_end; key += kBlockKeys) {
    const int64_t count = round_up(smaller(kBlockKeys, key_end - key), kTileDepth);
    multiply_keys<Product, kStrips>(keys, key, count, key_begin, key_end, args.head_size,
                                    key_columns, scratch);
    if (!plain) finish_logits<kStrips>(args, lanes, key, count, scratch.logits);
    if (key < lanes.all.first || key + count - 1 > lanes.all.last) {
      hide_keys<kStrips>(lanes, key, count, scratch.logits);
    }
    if (weigh_block<Product, kStrips>(scratch.logits, count, factor, lanes)) {
      scale_sums<kStrips>(lanes, value_columns, scratch.out);
    }
    multiply_values<Product, kStrips>(values, key, count, key_begin, key_end, args.value_head_size,
                                      value_columns, scratch);
  }
  store_states<kStrips>(lanes, scratch.out, rows.count, states);
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
