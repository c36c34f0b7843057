// SPDX-License-Identifier: Apache-2.0
//
// The first product of a low-rank adapter: few outputs per token, each one sum over the depth in a
// fixed order, so that a token's result does not depend on the tokens beside it.
#pragma once

#include <cstdint>

#include "lora/lora_args.h"
#include "vec/elements-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

#if ANVIL_VECTOR_BYTES == 64
constexpr int kLoraTokens = 4;  // by 4 ranks or registers: 16 sums of 32 registers
#else
constexpr int kLoraTokens = 2;
#endif

inline int64_t lora_rank_of(const LoraBatch& batch, int64_t slice, int64_t adapter) {
  return batch.ranks == nullptr ? batch.rank : batch.ranks[slice * batch.adapters + adapter];
}

// T tokens by R ranks from `rank` on.
template <typename Input, typename Weight, int T, int R>
inline void shrink_tile(const LoraShrinkArgs& args, const int32_t* tokens,
                        const typename Weight::Stored* weight, int64_t weight_stride,
                        float* shrunk) {
  const typename Input::Stored* input[T];
  Floats sums[T][R];
  for (int t = 0; t < T; ++t) {
    input[t] =
        static_cast<const typename Input::Stored*>(args.input) + tokens[t] * args.input_stride;
    for (int r = 0; r < R; ++r) sums[t][r] = Floats::zero();
  }
  for_registers(args.depth, [&](int64_t k, auto part) {
    Floats w[R];
    for (int r = 0; r < R; ++r) w[r] = Weight::load(weight + r * weight_stride + k, part);
    for (int t = 0; t < T; ++t) {
      const Floats x = Input::load(input[t] + k, part);
      for (int r = 0; r < R; ++r) sums[t][r].add_product(x, w[r]);
    }
  });
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) {
      shrunk[tokens[t] * args.token_stride + r] = args.scale * sums[t][r].sum();
    }
  }
}

template <typename Input, typename Weight, int R>
inline void shrink_ranks(const LoraShrinkArgs& args, const LoraRun& run,
                         const typename Weight::Stored* weight, int64_t weight_stride,
                         float* shrunk) {
  int64_t t = 0;
  for (; t + kLoraTokens <= run.count; t += kLoraTokens) {
    shrink_tile<Input, Weight, kLoraTokens, R>(args, run.tokens + t, weight, weight_stride, shrunk);
  }
  if (kLoraTokens > 2 && t + 2 <= run.count) {
    shrink_tile<Input, Weight, 2, R>(args, run.tokens + t, weight, weight_stride, shrunk);
    t += 2;
  }
  for (; t < run.count; ++t) {
    shrink_tile<Input, Weight, 1, R>(args, run.tokens + t, weight, weight_stride, shrunk);
  }
}

// Ranks [first, first + kLoraRankBlock) of one run and slice.
template <typename Input, typename Weight>
inline void shrink_block(const LoraShrinkArgs& args, const LoraRun& run, int64_t slice,
                         int64_t first) {
  const LoraBatch& batch = args.batch;
  const LoraSlice& of = batch.slices[slice];
  const auto* weight =
      static_cast<const typename Weight::Stored*>(of.weight) + run.adapter * of.adapter_stride;
  float* shrunk = args.shrunk + slice * args.slice_stride;
  const int64_t last = first + kLoraRankBlock < batch.rank ? first + kLoraRankBlock : batch.rank;
  const int64_t in_use = lora_rank_of(batch, slice, run.adapter);
  const int64_t end = in_use < last ? in_use : last;
  int64_t r = first;
  for (; r + 4 <= end; r += 4) {
    shrink_ranks<Input, Weight, 4>(args, run, weight + r * of.rank_stride, of.rank_stride,
                                   shrunk + r);
  }
  for (; r < end; ++r) {
    shrink_ranks<Input, Weight, 1>(args, run, weight + r * of.rank_stride, of.rank_stride,
                                   shrunk + r);
  }
  for (; r < last; ++r) {
    for (int64_t t = 0; t < run.count; ++t) shrunk[run.tokens[t] * args.token_stride + r] = 0;
  }
}

// Range over runs times slices times blocks of ranks, the last fastest.
inline void lora_shrink(const LoraShrinkArgs& args, int64_t begin, int64_t end) {
  const LoraBatch& batch = args.batch;
  const int64_t blocks = (batch.rank + kLoraRankBlock - 1) / kLoraRankBlock;
  with_element(args.input_type, [&](auto input) {
    with_element(batch.weight_type, [&](auto weight) {
      for (int64_t i = begin; i < end; ++i) {
        shrink_block<decltype(input), decltype(weight)>(
            args, batch.runs[i / blocks / batch.slice_count], i / blocks % batch.slice_count,
            i % blocks * kLoraRankBlock);
      }
    });
  });
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
