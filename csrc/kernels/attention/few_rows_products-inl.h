// SPDX-License-Identifier: Apache-2.0
//
// The two products of a few rows with groups of keys: columns are the lanes.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "attention/products-inl.h"
#include "attention/query_rows-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Keys whose logits are one register, and keys between two looks at the maximum, at most.
constexpr int64_t kGroupKeys = Floats::kLanes;
constexpr int64_t kChunkKeys = 64;
constexpr int64_t kChunkGroups = kChunkKeys / kGroupKeys;
// Pairs of registers of columns whose sums are kept for so many rows in registers at once.
constexpr int column_pairs(int rows) { return ANVIL_VECTOR_BYTES == 64 && rows <= 4 ? 2 : 1; }

// kGroupKeys keys and their values; strides in elements.
template <typename Product>
struct KeyGroup {
  const typename Product::Cached *keys, *values;
  int64_t key_stride, value_stride;
};

template <int kNumber>
struct Registers {
  static constexpr int kCount = kNumber;
};

// Calls body(row, Registers<count>{}) for `rows` rows, kMost of them at once or fewer.
template <int kMost, typename Body>
inline void for_rows_together(int64_t rows, const Body& body) {
  static_assert(kMost == 4 || kMost == 8);
  int64_t row = 0;
  for (; row + kMost <= rows; row += kMost) body(row, Registers<kMost>{});
  if constexpr (kMost == 8) {
    if (row + 4 <= rows) {
      body(row, Registers<4>{});
      row += 4;
    }
  }
  switch (rows - row) {
    case 3:
      return body(row, Registers<3>{});
    case 2:
      return body(row, Registers<2>{});
    case 1:
      return body(row, Registers<1>{});
    default:
      return;
  }
}

// Lane i: the product of kRegisters registers of row `query` with key i.
template <typename Product, int kTerms, int kRegisters>
[[gnu::always_inline]] inline Floats group_products(const typename Product::Cached* key,
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
      const Floats units = Product::load(key + j * kRegister);
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
    const typename Product::Cached* values = group.values + column;
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
  constexpr int kPairs = column_pairs(kRows);
  constexpr int64_t kStep = 2 * Floats::kLanes;
  int64_t column = 0;
  for (; column + kPairs * kStep <= columns; column += kPairs * kStep) {
    add_values<Product, kTerms, kRows, kPairs>(groups, num_groups, weights, term_distance, column,
                                               out, columns);
  }
  for (; column < columns; column += kStep) {
    add_values<Product, kTerms, kRows, 1>(groups, num_groups, weights, term_distance, column, out,
                                          columns);
  }
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
