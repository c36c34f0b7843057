// SPDX-License-Identifier: Apache-2.0
//
// From the sums of a softmax over parts of a row's keys to the output.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "attention/query_rows-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// The states of `count` rows in memory of count * (columns + 2) floats.
inline RowStates states_at(float* memory, int64_t count, int64_t columns) {
  float* max = memory + count * columns;
  return {memory, columns, max, max + count};
}

inline void clear_states(const RowStates& states, int64_t count) {
  for (int64_t i = 0; i < count * states.columns; ++i) states.out[i] = 0.0f;
  for (int64_t row = 0; row < count; ++row) {
    states.max[row] = kNoneSeen;
    states.sum[row] = 0.0f;
  }
}

inline float exp2_of(float x) {
  float lanes[Floats::kLanes];
  exp2<false>(Floats::all(x)).store(lanes);
  return lanes[0];
}

// Adds the sums over further keys. Parts are added in the order of their keys, one by one, whoever
// does it: so the result is the same, bit by bit.
inline void add_states(const RowStates& states, const RowStates& further, int64_t count) {
  for (int64_t row = 0; row < count; ++row) {
    const float max = states.max[row] > further.max[row] ? states.max[row] : further.max[row];
    const float before = exp2_of(states.max[row] - max), now = exp2_of(further.max[row] - max);
    states.max[row] = max;
    states.sum[row] = states.sum[row] * before + further.sum[row] * now;
    float* out = states.out + row * states.columns;
    const float* more = further.out + row * states.columns;
    for (int64_t c = 0; c < states.columns; c += Floats::kLanes) {
      Floats sum = Floats::load(out + c) * Floats::all(before);
      sum.add_product(Floats::load(more + c), Floats::all(now));
      sum.store(out + c);
    }
  }
}

// Writes the rows of the output.
inline void finish_rows(const QueryRows& rows, const RowStates& states) {
  const AttentionArgs& args = rows.args;
  for (int64_t row = 0; row < rows.count; ++row) {
    const int64_t head = rows.head(row);
    float sum = states.sum[row], share = 1.0f;
    if (args.sinks != nullptr) {
      // One more key, whose value is 0.
      const float sink = args.sinks[head] * kLog2e;
      const float max = states.max[row] > sink ? states.max[row] : sink;
      share = exp2_of(states.max[row] - max);
      sum = sum * share + exp2_of(sink - max);
    }
    // A row that sees no key is 0.
    const float factor = sum == 0.0f ? 0.0f : args.value_scale * share / sum;
    const float* from = states.out + row * states.columns;
    const int64_t offset =
        rows.token(row) * args.output_token_stride + head * args.output_head_stride;
    with_element(args.type, [&](auto element) {
      using To = decltype(element);
      auto* to = static_cast<typename To::Stored*>(args.output) + offset;
      for_registers(args.value_head_size, [&](int64_t i, auto part) {
        To::store(Floats::load(from + i) * Floats::all(factor), to + i, part);
      });
    });
  }
}

// The same for as many KV heads, each of which has as many rows.
inline void finish_heads(const QueryRows& rows, int64_t heads, const RowStates& states) {
  for (int64_t h = 0; h < heads; ++h) {
    finish_rows({rows.args, rows.request, rows.kv_head + h, rows.begin, rows.count},
                states.from_row(h * rows.count));
  }
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
