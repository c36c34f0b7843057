// SPDX-License-Identifier: Apache-2.0
//
// Attention of a tile of rows, as a prompt has: rows are the lanes, so that the softmax of each
// goes on in its own lane, and blocks of keys and values are copied once for all of them.
//
// What is computed for a row depends on its keys alone, not on the rows beside it: blocks begin at
// multiples of kBlockKeys, and one of which a row sees nothing changes nothing. Products, weights
// and sums are those of few_rows-inl.h, which gives a row the same bits where the batch must not
// matter.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "attention/cache_rows-inl.h"
#include "attention/key_chunks-inl.h"
#include "attention/query_rows-inl.h"
#include "attention/tile_product-inl.h"
#include "attention/tile_softmax-inl.h"

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
                          const TileScratch<Product>& scratch, NextChunk& coming) {
  constexpr int64_t kRow = kStrips * Floats::kLanes, kUnit = sizeof(float);
  const int64_t units = columns / Product::kPerUnit;
  const bool whole = in_place<Product>(keys, size, columns) && begin <= key && key + count <= end &&
                     keys.block_size % kTileDepth == 0 && keys.token_stride % kUnit == 0;
  if (!whole) copy_cache_rows<Product>(keys, key, count, begin, end, size, scratch.keys, columns);
  for (int64_t i = 0; i < count; i += kTileDepth) {
    coming.prefetch();
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
                            const TileScratch<Product>& scratch, NextChunk& coming) {
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
    coming.prefetch();
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
  static_assert(kMostTileRows <= kBlockKeys && kBlockKeys == kChunkKeys);
  for (int64_t lane = 0; lane < kRow; ++lane) {
    load_query<Product, 1>(rows, lane, scratch.keys + lane * key_columns, 0, key_columns);
  }
  place_query<kStrips>(reinterpret_cast<const float*>(scratch.keys),
                       key_columns / Product::kPerUnit, scratch.query);
  for (int64_t i = 0; i < value_columns * kRow; i += Floats::kLanes) {
    Floats::zero().store(scratch.out + i);
  }
  const bool plain = plain_logits(args);
  const float factor = plain ? args.scale * kLog2e : 1.0f;

  const int64_t element = bytes_of(args.cache_type);
  const bool one_block = args.block_size % kGroupKeys == 0;
  // The block from `key` on, to be asked for in `steps` steps.
  const auto coming_block = [&](int64_t key, ChunkPlace& place, int64_t steps) {
    place = place_chunk(keys, values, key, kChunkGroups, key_end);
    return NextChunk{place,
                     keys.data,
                     values.data,
                     keys.token_stride,
                     values.token_stride,
                     args.head_size * element,
                     args.value_head_size * element,
                     one_block ? place.num_groups * kGroupKeys : 0,
                     steps};
  };
  const int64_t begin = key_begin / kBlockKeys * kBlockKeys;
  ChunkPlace place;
  coming_block(begin, place, 1).prefetch();
  for (int64_t key = begin; key < key_end; key += kBlockKeys) {
    const int64_t count = round_up(smaller(kBlockKeys, key_end - key), kTileDepth);
    NextChunk coming = coming_block(key + kBlockKeys, place, (count + value_columns) / kTileDepth);
    multiply_keys<Product, kStrips>(keys, key, count, key_begin, key_end, args.head_size,
                                    key_columns, scratch, coming);
    if (!plain) finish_logits<kStrips>(args, lanes, key, count, scratch.logits);
    if (key < lanes.all.first || key + count - 1 > lanes.all.last) {
      hide_keys<kStrips>(lanes, key, count, scratch.logits);
    }
    if (weigh_block<Product, kStrips>(scratch.logits, count, factor, lanes)) {
      scale_sums<kStrips>(lanes, value_columns, scratch.out);
    }
    multiply_values<Product, kStrips>(values, key, count, key_begin, key_end, args.value_head_size,
                                      value_columns, scratch, coming);
  }
  store_states<kStrips>(lanes, scratch.out, rows.count, states);
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
