// SPDX-License-Identifier: Apache-2.0
//
// Attention of a few rows, as a decoded token has: columns of keys and values are the lanes, and
// the cache is read where it lies, once. That costs less time than its bytes take to arrive, if the
// next of them are asked for meanwhile. The heads of a request take turns, chunk of keys by chunk:
// in most layouts they are neighbours, and memory is read in long runs.
//
// With fixed splits a row's bits are those that tile-inl.h gives it: chunks are its blocks, and
// keys are the lanes of the first product, whatever the number of rows.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "attention/few_rows_products-inl.h"
#include "attention/key_chunks-inl.h"
#include "attention/key_units-inl.h"
#include "vec/math-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Rows of one head, for any types, and of all heads of an item.
constexpr int64_t kMostFewRows = 24;
constexpr int64_t kMostHeadRows = 64;

template <typename Product>
struct FewRowsScratch {
  using Stored = typename Product::Stored;
  using Cached = typename Product::Cached;
  Stored* query;    // [heads][terms][rows][key columns]
  Stored* weights;  // [terms][rows][kChunkKeys]
  float* logits;    // [rows][kChunkKeys]
  Cached* keys;     // [kGroupKeys][key columns]
  Cached* values;   // [kChunkKeys][value columns]
  float* units;     // of keys, [key columns / kPerUnit][kStrips * kGroupKeys]
};

// The keys of a group.
inline Floats group_positions(int64_t key) {
  float numbers[kGroupKeys];
  for (int64_t i = 0; i < kGroupKeys; ++i) numbers[i] = static_cast<float>(key + i);
  return Floats::load(numbers);
}

// Logits of a group for a row, in powers of two.
inline Floats finished_logits(Floats products, const QueryRows& rows, int64_t row, int64_t key) {
  const AttentionArgs& args = rows.args;
  Floats logits = products * Floats::all(args.scale);
  if (args.soft_cap > 0) {
    logits = tanh(logits * Floats::all(1.0f / args.soft_cap)) * Floats::all(args.soft_cap);
  }
  logits = logits * Floats::all(kLog2e);
  if (args.alibi_slopes == nullptr) return logits;
  const Floats position = Floats::all(static_cast<float>(rows.position(row)));
  const Floats distance = (group_positions(key) - position).magnitude();
  const float slope = args.alibi_slopes[rows.head(row)] * -kLog2e;
  return distance.multiply_add(Floats::all(slope), logits);
}

// Logits of a group, hidden where a row does not see a key.
inline Floats seen_logits(Floats logits, int64_t key, Visible seen) {
  if (key >= seen.first && key + kGroupKeys - 1 <= seen.last) return logits;
  const Floats position = group_positions(key);
  const LaneBits visible = position.at_least(Floats::all(static_cast<float>(seen.first))) &
                           Floats::all(static_cast<float>(seen.last)).at_least(position);
  return logits.where(visible, Floats::all(kHidden));
}

// Finishes a chunk's logits of a row but for a factor, which is returned: the softmax multiplies by
// it.
inline float finish_chunk(float* logits, const QueryRows& rows, int64_t row,
                          const ChunkPlace& place, Visible seen) {
  const AttentionArgs& args = rows.args;
  const int64_t end = place.begin + place.num_groups * kGroupKeys;
  const bool plain = plain_logits(args);
  if (!plain || place.begin < seen.first || end - 1 > seen.last) {
    for (int64_t key = place.begin; key < end; key += kGroupKeys, logits += kGroupKeys) {
      Floats group = Floats::load(logits);
      if (!plain) group = finished_logits(group, rows, row, key);
      seen_logits(group, key, seen).store(logits);
    }
  }
  return plain ? args.scale * kLog2e : 1.0f;
}

// One chunk's logits of a row, times `factor`, become weights; the row's sums are brought to a new
// maximum first if they must be.
template <typename Product, int kTerms>
inline void weigh_chunk(const float* logits, int64_t num_groups, float factor,
                        typename Product::Stored* weights, int64_t term_distance,
                        const RowStates& states, int64_t row) {
  Floats most = Floats::load(logits);
  for (int64_t g = 1; g < num_groups; ++g) {
    most = most.max(Floats::load(logits + g * kGroupKeys));
  }
  most = most * Floats::all(factor);
  float& max = states.max[row];
  Floats change = Floats::all(1.0f);
  if (most.greater(Floats::all(max + kSlack)) != 0) {
    const float now = most.greatest();
    change = exp2<false>(Floats::all(max - now));
    float* out = states.out + row * states.columns;
    for (int64_t c = 0; c < states.columns; c += Floats::kLanes) {
      (Floats::load(out + c) * change).store(out + c);
    }
    max = now;
  }
  constexpr bool kForHalf = Product::kPerUnit > 1 && kTerms == 1;
  const Floats shift = Floats::all(-max), by = Floats::all(factor);
  Floats total = Floats::zero();
  for (int64_t key = 0; key < num_groups * kGroupKeys; key += 2 * Floats::kLanes) {
    Floats pair[2] = {Floats::zero(), Floats::zero()};
    for (int64_t i = 0; i < 2 && key + i * kGroupKeys < num_groups * kGroupKeys; ++i) {
      pair[i] = exp2<kForHalf>(Floats::load(logits + key + i * kGroupKeys).multiply_add(by, shift));
    }
    Product::template store_weights<kTerms>(pair, weights + key, term_distance);
    for (int t = 0; t < kTerms; ++t) {
      const typename Product::Stored* stored = weights + t * term_distance + key;
      for (int i = 0; i < 2; i += Product::kPerUnit) {
        total = Product::add_weights(total, load_units(stored + i * Floats::kLanes));
      }
    }
  }
  const Floats before = Floats::all(states.sum[row]);
  before.multiply_add(change, Floats::all(total.sum())).store(states.sum + row, 1);
}

template <typename Product, int kTerms>
inline void add_chunk_values(const KeyGroup<Product>* groups, int64_t num_groups,
                             const typename Product::Stored* weights, int64_t term_distance,
                             const RowStates& states, int64_t rows) {
  for_rows_together<Product::kValueRows>(rows, [&](int64_t row, auto count) {
    add_all_values<Product, kTerms, decltype(count)::kCount>(
        groups, num_groups, weights + row * kChunkKeys, term_distance,
        states.out + row * states.columns, states.columns);
  });
}

// Adds the keys [key_begin, key_end) to the states of `heads` heads' rows, of which `rows` are the
// first's; the others' follow.
template <typename Product, int kTerms>
inline void attend_few_rows(const QueryRows& rows, int64_t heads, int64_t key_begin,
                            int64_t key_end, const FewRowsScratch<Product>& scratch,
                            const RowStates& states) {
  using Stored = typename Product::Stored;
  using Cached = typename Product::Cached;
  using Copies = typename Product::Copies;
  const AttentionArgs& args = rows.args;
  const int64_t key_columns = padded_columns(args.head_size), value_columns = states.columns;
  const int64_t query_distance = rows.count * key_columns;
  const int64_t weight_distance = rows.count * kChunkKeys;
  const int64_t element = bytes_of(args.cache_type);
  const int64_t key_bytes = args.head_size * element, value_bytes = args.value_head_size * element;
  const CacheRows keys(rows, args.keys), values(rows, args.values);
  const int64_t key_head = args.keys.head_stride * element;
  const int64_t value_head = args.values.head_stride * element;
  const bool one_block = args.block_size % kGroupKeys == 0;
  const bool whole = one_block && in_place<Copies>(keys, args.head_size, key_columns) &&
                     in_place<Copies>(values, args.value_head_size, value_columns);
  const bool as_tiles = args.fixed_split > 0;
  const int64_t chunk_groups = as_tiles ? kChunkGroups : groups_of_chunk(key_bytes + value_bytes);
  const int64_t align = as_tiles ? kChunkKeys : kGroupKeys;
  const bool transposed = as_tiles || rows.count >= Product::kRowsToTranspose;
  Visible seen[kMostFewRows];  // the same for every head
  for (int64_t row = 0; row < rows.count; ++row) {
    seen[row] = rows.visible(row);
    seen[row].first = larger(seen[row].first, key_begin);
    seen[row].last = smaller(seen[row].last, key_end - 1);
  }

  ChunkPlace place = place_chunk(keys, values, key_begin / align * align, chunk_groups, key_end);
  if (one_block) {
    // What comes first has been asked for by no one.
    NextChunk first = {place,
                       keys.data,
                       values.data,
                       keys.token_stride,
                       values.token_stride,
                       key_bytes,
                       value_bytes,
                       place.num_groups * kGroupKeys,
                       1};
    first.prefetch();
  }
  while (place.num_groups > 0) {
    ChunkPlace next = place_chunk(keys, values, place.begin + place.num_groups * kGroupKeys,
                                  chunk_groups, key_end);
    for (int64_t h = 0; h < heads; ++h) {
      const QueryRows of_head = {args, rows.request, rows.kv_head + h, rows.begin, rows.count};
      const CacheRows head_keys(of_head, args.keys), head_values(of_head, args.values);
      const RowStates head_states = states.from_row(h * rows.count);
      const Stored* query = scratch.query + h * kTerms * query_distance;
      const bool last = h + 1 == heads;
      const ChunkPlace& ahead = last ? next : place;
      const int64_t next_head = last ? 0 : h + 1;
      NextChunk coming = {ahead,
                          keys.data + next_head * key_head,
                          values.data + next_head * value_head,
                          keys.token_stride,
                          values.token_stride,
                          key_bytes,
                          value_bytes,
                          one_block ? ahead.num_groups * kGroupKeys : 0,
                          place.num_groups * (transposed ? 1 : rows.count) + rows.count};
      KeyGroup<Product> groups[kChunkGroups];
      for (int64_t g = 0; g < place.num_groups; ++g) {
        const int64_t key = place.begin + g * kGroupKeys;
        KeyGroup<Product>& group = groups[g];
        if (whole && key >= key_begin && key + kGroupKeys <= key_end) {
          group = {reinterpret_cast<const Cached*>(head_keys.data + place.keys[g]),
                   reinterpret_cast<const Cached*>(head_values.data + place.values[g]),
                   keys.token_stride / static_cast<int64_t>(sizeof(Cached)),
                   values.token_stride / static_cast<int64_t>(sizeof(Cached))};
        } else {
          Cached* value_rows = scratch.values + g * kGroupKeys * value_columns;
          group = {scratch.keys, value_rows, key_columns, value_columns};
          copy_cache_rows<Copies>(head_keys, key, kGroupKeys, key_begin, key_end, args.head_size,
                                  scratch.keys, key_columns);
          copy_cache_rows<Copies>(head_values, key, kGroupKeys, key_begin, key_end,
                                  args.value_head_size, value_rows, value_columns);
        }
        if (transposed) {
          const int64_t strip = g % kStrips;
          coming.prefetch();
          transpose_keys(group, key_columns, scratch.units + strip * kGroupKeys);
          if (strip + 1 == kStrips || g + 1 == place.num_groups) {
            multiply_key_units<Product, kTerms>(query, rows.count, query_distance, key_columns,
                                                scratch.units, strip + 1,
                                                scratch.logits + (g - strip) * kGroupKeys);
          }
          continue;
        }
        for (int64_t row = 0; row < rows.count; ++row) {
          coming.prefetch();
          group_logits<Product, kTerms>(group, query + row * key_columns, query_distance,
                                        key_columns)
              .store(scratch.logits + row * kChunkKeys + g * kGroupKeys);
        }
      }
      for (int64_t row = 0; row < rows.count; ++row) {
        float* logits = scratch.logits + row * kChunkKeys;
        coming.prefetch();
        const float factor = finish_chunk(logits, of_head, row, place, seen[row]);
        weigh_chunk<Product, kTerms>(logits, place.num_groups, factor,
                                     scratch.weights + row * kChunkKeys, weight_distance,
                                     head_states, row);
      }
      add_chunk_values<Product, kTerms>(groups, place.num_groups, scratch.weights, weight_distance,
                                        head_states, rows.count);
    }
    place = next;
  }
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
