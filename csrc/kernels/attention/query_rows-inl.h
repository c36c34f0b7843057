// SPDX-License-Identifier: Apache-2.0
//
// The rows of one KV head of a request: its query tokens, each with every query head that shares
// the KV head. Row r is token r / group, head r % group of the group.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "attention/attention_args.h"
#include "vec/elements-inl.h"
#include "vec/math-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// Columns of a key, a value or an output row as they are kept here, with zeros at the end: whole
// pairs of registers, and whole tiles of products.
constexpr int64_t kColumnStep = 2 * Floats::kLanes > 8 ? 2 * Floats::kLanes : 8;
inline int64_t padded_columns(int64_t size) { return round_up(size, kColumnStep); }

// Keys [first, last] that a row sees; none where last < first.
struct Visible {
  int64_t first, last;
};

struct QueryRows {
  const AttentionArgs& args;
  int64_t request, kv_head;
  int64_t begin, count;  // the rows [begin, begin + count)

  int64_t group() const { return args.num_heads / args.num_kv_heads; }
  int64_t length() const { return args.seq_lens[request]; }
  int64_t query_start() const { return args.query_start_loc[request]; }
  bool causal() const {
    return args.causal_per_request == nullptr ? args.causal : args.causal_per_request[request];
  }
  // Of row `begin + row`.
  int64_t token(int64_t row) const { return query_start() + (begin + row) / group(); }
  int64_t head(int64_t row) const { return kv_head * group() + (begin + row) % group(); }
  int64_t position(int64_t row) const {
    return length() - args.query_start_loc[request + 1] + token(row);
  }

  Visible visible(int64_t row) const {
    const int64_t at = position(row), end = length() - 1;
    Visible seen = {0, end};
    if (causal()) seen.last = smaller(end, at);
    if (args.window > 0) {
      seen.first = larger(0, at - (args.window - 1));
      if (!causal()) seen.last = smaller(end, at + (args.window - 1));
    }
    return seen;
  }
};

// Sums of the softmax over some of the rows' keys, in units of 2^max: `sum` of the weights, and of
// the values by them in the row's part of `out`.
struct RowStates {
  float* out;  // [count, columns]
  int64_t columns;
  float* max;  // [count]
  float* sum;  // [count]

  RowStates from_row(int64_t row) const {
    return {out + row * columns, columns, max + row, sum + row};
  }
};

// Logits are in powers of two. That of a key which is not seen, and the largest of none: finite, so
// that differences from it are.
constexpr float kHidden = -__builtin_inff();
constexpr float kNoneSeen = -3.4e38f;
// By how much logits may exceed the maximum that sums are in units of, before the sums are changed
// to a new one: powers of two are not lost in float32, and most blocks of keys need no change.
constexpr float kSlack = 8.0f;
constexpr float kLog2e = 1.44269504f;

// Whether logits are products times one factor, which the softmax then multiplies by. A factor that
// is not positive would turn what is hidden into the largest.
inline bool plain_logits(const AttentionArgs& args) {
  return args.soft_cap == 0 && args.alibi_slopes == nullptr && args.scale > 0;
}

// 2^x for x up to 128; 0 for x below -150. NaN stays.
template <bool kForHalf>
inline Floats exp2(Floats x) {
  // Minimax fits of the relative error for |x| <= 1/2: 7.5e-5, a 25th of a bfloat16's rounding, and
  // 1.9e-9.
  constexpr float kShort[] = {0.99992806f, 0.69326097f, 0.24261113f, 0.05517167f};
  constexpr float kLong[] = {1.0f,         0.6931472f,    0.24022646f,   0.055503286f,
                             0.009618489f, 0.0013399931f, 0.00015345812f};
  const Floats bounded = Floats::all(-200.0f).max(x);
  const Floats exponent = bounded.rounded();
  const Floats rest = bounded - exponent;
  if constexpr (kForHalf) {
    return polynomial(rest, kShort).scaled(exponent);
  } else {
    return polynomial(rest, kLong).scaled(exponent);
  }
}

// Row `row` of the query as kTerms rows that add up to it, `term_distance` elements apart; zeros
// behind its end, and for rows that there are not.
template <typename Product, int kTerms>
inline void load_query(const QueryRows& rows, int64_t row, typename Product::Stored* to,
                       int64_t term_distance, int64_t columns) {
  const AttentionArgs& args = rows.args;
  const int64_t size = row < rows.count ? args.head_size : 0;
  for (int64_t t = 0; t < kTerms; ++t) {
    for (int64_t c = size; c < columns; ++c) to[t * term_distance + c] = 0;
  }
  if (size == 0) return;
  const int64_t offset =
      rows.token(row) * args.query_token_stride + rows.head(row) * args.query_head_stride;
  with_element(args.type, [&](auto element) {
    using From = decltype(element);
    const auto* from = static_cast<const typename From::Stored*>(args.query) + offset;
    if constexpr (Product::template kHolds<From>) {
      Product::template convert<From>(from, size, to);
    } else if constexpr (kTerms > 1) {
      for (int64_t c = 0; c < size; c += 2 * Floats::kLanes) {
        Floats pair[2];
        for (int64_t i = 0; i < 2; ++i) {
          const int64_t left = size - c - i * Floats::kLanes;
          pair[i] = left >= Floats::kLanes ? From::load(from + c + i * Floats::kLanes)
                    : left > 0             ? From::load(from + c + i * Floats::kLanes, First{left})
                                           : Floats::zero();
        }
        Product::template store_weights<kTerms>(pair, to + c, term_distance);
      }
    }
  });
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
