// SPDX-License-Identifier: Apache-2.0
//
// Attention of a few rows, as a decoded token has: columns of keys and values are the lanes, and
// the cache is read where it lies, once. That costs less time than its bytes take to arrive, if the
// next of them are asked for meanwhile.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "attention/cache_rows-inl.h"
#include "vec/math-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Keys whose logits are one register, and keys between two looks at the maximum.
constexpr int64_t kGroupKeys = Floats::kLanes;
constexpr int64_t kChunkKeys = 64;
constexpr int64_t kChunkGroups = kChunkKeys / kGroupKeys;
// Rows, and pairs of registers of their columns, whose sums are kept in registers at once.
#if ANVIL_VECTOR_BYTES == 64
constexpr int kColumnPairs = 2;
#else
constexpr int kColumnPairs = 1;
#endif
constexpr int64_t kMostFewRows = 16;
constexpr int64_t kPrefetchKeys = 64;

template <typename Product>
struct FewRowsScratch {
  using Stored = typename Product::Stored;
  Stored* query;    // [terms][rows][key columns]
  Stored* weights;  // [terms][rows][kChunkKeys]
  float* logits;    // [rows][kChunkKeys]
  Stored* keys;     // [kGroupKeys][key columns]
  Stored* values;   // [kChunkKeys][value columns]
};

// kGroupKeys keys and their values; strides in elements.
template <typename Product>
struct KeyGroup {
  const typename Product::Stored *keys, *values;
  int64_t key_stride, value_stride;
};

template <int kNumber>
struct Registers {
  static constexpr int kCount = kNumber;
};

// Lane i: the product of kRegisters registers of row `query` with key i.
template <typename Product, int kTerms, int kRegisters>
[[gnu::always_inline]] inline Floats group_products(const typename Product::Stored* key,
                                                    int64_t key_stride,
                                                    const typename Product::Stored* query,
                                                    int64_t term_distance) {
  constexpr int64_t kRegister = Floats::kLanes * Product::kPerUnit;
  Floats terms[kTerms][kRegisters];
  for (int t = 0; t < kTerms; ++t) {
    for (int j = 0; j < kRegisters; ++j) {
      terms[t][j] = load_units(query + t * term_distance + j * kRegister);
    }
  }
  Floats sums[kGroupKeys];
#pragma GCC unroll 16
  for (int64_t i = 0; i < kGroupKeys; ++i) {
    Floats sum = Floats::zero();
    for (int j = 0; j < kRegisters; ++j) {
      const Floats units = load_units(key + j * kRegister);
      for (int t = 0; t < kTerms; ++t) sum = Product::multiply_add(sum, terms[t][j], units);
    }
    sums[i] = sum;
    key += key_stride;
  }
  return Floats::sums_of(sums);
}

template <typename Product, int kTerms>
inline Floats group_logits(const KeyGroup<Product>& group, const typename Product::Stored* query,
                           int64_t term_distance, int64_t columns) {
  constexpr int64_t kRegister = Floats::kLanes * Product::kPerUnit;
  const auto products = [&](int64_t column, auto registers) {
    return group_products<Product, kTerms, decltype(registers)::kCount>(
        group.keys + column, group.key_stride, query + column, term_distance);
  };
  // As much of a row at once as there is: the sum over lanes costs as much as two registers.
  Floats logits = Floats::zero();
  int64_t column = 0;
  for (; column + 4 * kRegister <= columns; column += 4 * kRegister) {
    logits = logits + products(column, Registers<4>{});
  }
  switch ((columns - column) / kRegister) {
    case 3:
      return logits + products(column, Registers<3>{});
    case 2:
      return logits + products(column, Registers<2>{});
    case 1:
      return logits + products(column, Registers<1>{});
    default:
      return logits;
  }
}

// Adds values by their weights to kPairs pairs of registers of kRows rows, beginning at `column`.
template <typename Product, int kTerms, int kRows, int kPairs>
inline void add_values(const KeyGroup<Product>* groups, int64_t num_groups,
                       const typename Product::Stored* weights, int64_t term_distance,
                       int64_t column, float* out, int64_t out_stride) {
  Floats sums[kRows][2 * kPairs];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < 2 * kPairs; ++j) {
      sums[r][j] = Floats::load(out + r * out_stride + column + j * Floats::kLanes);
    }
  }
  for (int64_t g = 0; g < num_groups; ++g) {
    const KeyGroup<Product>& group = groups[g];
    const typename Product::Stored* values = group.values + column;
    for (int64_t key = 0; key < kGroupKeys; key += Product::kPerUnit) {
      Floats columns[kPairs][2];
      for (int p = 0; p < kPairs; ++p) {
        Product::columns_of_unit(values + p * 2 * Floats::kLanes, group.value_stride, columns[p]);
      }
      values += Product::kPerUnit * group.value_stride;
      for (int r = 0; r < kRows; ++r) {
        for (int t = 0; t < kTerms; ++t) {
          const Floats weight =
              all_units(weights + t * term_distance + r * kChunkKeys + g * kGroupKeys + key);
          for (int j = 0; j < 2 * kPairs; ++j) {
            sums[r][j] = Product::multiply_add(sums[r][j], columns[j / 2][j % 2], weight);
          }
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < 2 * kPairs; ++j) {
      sums[r][j].store(out + r * out_stride + column + j * Floats::kLanes);
    }
  }
}

template <typename Product, int kTerms, int kRows>
inline void add_all_values(const KeyGroup<Product>* groups, int64_t num_groups,
                           const typename Product::Stored* weights, int64_t term_distance,
                           float* out, int64_t columns) {
  constexpr int64_t kStep = 2 * Floats::kLanes;
  int64_t column = 0;
  for (; column + kColumnPairs * kStep <= columns; column += kColumnPairs * kStep) {
    add_values<Product, kTerms, kRows, kColumnPairs>(groups, num_groups, weights, term_distance,
                                                     column, out, columns);
  }
  for (; column < columns; column += kStep) {
    add_values<Product, kTerms, kRows, 1>(groups, num_groups, weights, term_distance, column, out,
                                          columns);
  }
}

// Logits of a group for a row, in powers of two, hidden where the row does not see a key.
inline Floats finished_logits(Floats products, const QueryRows& rows, int64_t row, int64_t key,
                              Visible seen) {
  const AttentionArgs& args = rows.args;
  const bool inside = key >= seen.first && key + kGroupKeys - 1 <= seen.last;
  if (inside && args.soft_cap == 0 && args.alibi_slopes == nullptr) {
    return products * Floats::all(args.scale * kLog2e);
  }
  Floats logits = products * Floats::all(args.scale);
  if (args.soft_cap > 0) {
    logits = tanh(logits * Floats::all(1.0f / args.soft_cap)) * Floats::all(args.soft_cap);
  }
  logits = logits * Floats::all(kLog2e);
  if (args.alibi_slopes == nullptr && inside) return logits;
  float numbers[kGroupKeys];
  for (int64_t i = 0; i < kGroupKeys; ++i) numbers[i] = static_cast<float>(key + i);
  const Floats position = Floats::load(numbers);
  if (args.alibi_slopes != nullptr) {
    const Floats distance =
        (position - Floats::all(static_cast<float>(rows.position(row)))).magnitude();
    const float slope = args.alibi_slopes[rows.head(row)] * -kLog2e;
    logits = distance.multiply_add(Floats::all(slope), logits);
  }
  if (!inside) {
    const LaneBits visible = position.at_least(Floats::all(static_cast<float>(seen.first))) &
                             Floats::all(static_cast<float>(seen.last)).at_least(position);
    logits = logits.where(visible, Floats::all(kHidden));
  }
  return logits;
}

// One chunk's logits of a row become weights; the row's sums are brought to a new maximum first if
// they must be.
template <typename Product, int kTerms>
inline void weigh_chunk(float* logits, int64_t num_groups, typename Product::Stored* weights,
                        int64_t term_distance, const RowStates& states, int64_t row) {
  Floats most = Floats::load(logits);
  for (int64_t g = 1; g < num_groups; ++g) {
    most = most.max(Floats::load(logits + g * kGroupKeys));
  }
  float& max = states.max[row];
  if (most.greater(Floats::all(max + kSlack)) != 0) {
    const float now = most.greatest();
    const Floats factor = exp2<false>(Floats::all(max - now));
    float* out = states.out + row * states.columns;
    for (int64_t c = 0; c < states.columns; c += Floats::kLanes) {
      (Floats::load(out + c) * factor).store(out + c);
    }
    float lanes[Floats::kLanes];
    factor.store(lanes);
    states.sum[row] *= lanes[0];
    max = now;
  }
  const Floats shift = Floats::all(max);
  Floats total = Floats::zero();
  for (int64_t g = 0; g < num_groups; ++g) {
    const Floats weight =
        exp2<(Product::kPerUnit > 1 && kTerms == 1)>(Floats::load(logits + g * kGroupKeys) - shift);
    total = total + weight;
    weight.store(logits + g * kGroupKeys);
  }
  states.sum[row] += total.sum();
  for (int64_t key = 0; key < num_groups * kGroupKeys; key += 2 * Floats::kLanes) {
    const Floats pair[2] = {Floats::load(logits + key),
                            Floats::load(logits + key + Floats::kLanes)};
    Product::template store_weights<kTerms>(pair, weights + key, term_distance);
  }
}

inline void prefetch_rows(const CacheRows& cache, int64_t key, int64_t bytes) {
  const char* row = cache.row(key);
  for (int64_t i = 0; i < kGroupKeys; ++i) {
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(row + b);
    row += cache.token_stride;
  }
}

// Adds the keys [key_begin, key_end) to the states of the rows.
template <typename Product, int kTerms>
inline void attend_few_rows(const QueryRows& rows, int64_t key_begin, int64_t key_end,
                            const FewRowsScratch<Product>& scratch, const RowStates& states) {
  using Stored = typename Product::Stored;
  const AttentionArgs& args = rows.args;
  const int64_t key_columns = padded_columns(args.head_size);
  const int64_t value_columns = states.columns;
  const int64_t query_distance = rows.count * key_columns;
  const int64_t weight_distance = rows.count * kChunkKeys;
  const CacheRows keys(rows, args.keys), values(rows, args.values);
  const bool whole = in_place<Product>(keys, args.head_size, key_columns) &&
                     in_place<Product>(values, args.value_head_size, value_columns) &&
                     args.block_size % kGroupKeys == 0;
  const int64_t key_bytes = args.head_size * bytes_of(args.cache_type);
  const int64_t value_bytes = args.value_head_size * bytes_of(args.cache_type);

  Visible seen[kMostFewRows];
  for (int64_t row = 0; row < rows.count; ++row) {
    seen[row] = rows.visible(row);
    seen[row].first = larger(seen[row].first, key_begin);
    seen[row].last = smaller(seen[row].last, key_end - 1);
  }
  for (int64_t chunk = key_begin / kGroupKeys * kGroupKeys; chunk < key_end; chunk += kChunkKeys) {
    const int64_t num_groups =
        (smaller(chunk + kChunkKeys, key_end) - chunk + kGroupKeys - 1) / kGroupKeys;
    KeyGroup<Product> groups[kChunkGroups];
    for (int64_t g = 0; g < num_groups; ++g) {
      const int64_t key = chunk + g * kGroupKeys;
      KeyGroup<Product>& group = groups[g];
      if (whole && key >= key_begin && key + kGroupKeys <= key_end) {
        group = {reinterpret_cast<const Stored*>(keys.row(key)),
                 reinterpret_cast<const Stored*>(values.row(key)),
                 keys.token_stride / static_cast<int64_t>(sizeof(Stored)),
                 values.token_stride / static_cast<int64_t>(sizeof(Stored))};
      } else {
        Stored* value_rows = scratch.values + g * kGroupKeys * value_columns;
        group = {scratch.keys, value_rows, key_columns, value_columns};
        copy_cache_rows<Product>(keys, key, kGroupKeys, key_begin, key_end, args.head_size,
                                 scratch.keys, key_columns);
        copy_cache_rows<Product>(values, key, kGroupKeys, key_begin, key_end, args.value_head_size,
                                 value_rows, value_columns);
      }
      const int64_t ahead = key + kPrefetchKeys;
      if (ahead + kGroupKeys <= key_end) {
        prefetch_rows(keys, ahead, key_bytes);
        prefetch_rows(values, ahead, value_bytes);
      }
      for (int64_t row = 0; row < rows.count; ++row) {
        const Floats products = group_logits<Product, kTerms>(
            group, scratch.query + row * key_columns, query_distance, key_columns);
        finished_logits(products, rows, row, key, seen[row])
            .store(scratch.logits + row * kChunkKeys + g * kGroupKeys);
      }
    }
    for (int64_t row = 0; row < rows.count; ++row) {
      weigh_chunk<Product, kTerms>(scratch.logits + row * kChunkKeys, num_groups,
                                   scratch.weights + row * kChunkKeys, weight_distance, states,
                                   row);
    }
    int64_t row = 0;
    for (; row + 4 <= rows.count; row += 4) {
      add_all_values<Product, kTerms, 4>(groups, num_groups, scratch.weights + row * kChunkKeys,
                                         weight_distance, states.out + row * value_columns,
                                         value_columns);
    }
    const Stored* weights = scratch.weights + row * kChunkKeys;
    float* out = states.out + row * value_columns;
    switch (rows.count - row) {
      case 1:
        add_all_values<Product, kTerms, 1>(groups, num_groups, weights, weight_distance, out,
                                           value_columns);
        break;
      case 2:
        add_all_values<Product, kTerms, 2>(groups, num_groups, weights, weight_distance, out,
                                           value_columns);
        break;
      case 3:
        add_all_values<Product, kTerms, 3>(groups, num_groups, weights, weight_distance, out,
                                           value_columns);
        break;
    }
  }
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
