// SPDX-License-Identifier: Apache-2.0
//
// The second product of a low-rank adapter: many outputs per token, each a short sum over the ranks
// in their order. Columns lie side by side, so that a register of the weight is one of outputs.
#pragma once

#include <cstdint>

#include "lora/lora_args.h"
#include "lora/lora_shrink-inl.h"
#include "vec/elements-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// T tokens by R registers, the last of which may be a part.
template <typename Weight, typename Output, int T, int R, typename Part>
inline void expand_tile(const LoraExpandArgs& args, const int32_t* tokens, int64_t rank,
                        const float* shrunk, const typename Weight::Stored* weight,
                        int64_t weight_stride, typename Output::Stored* output, Part part) {
  const float* factors[T];
  typename Output::Stored* to[T];
  Floats sums[T][R];
  for (int t = 0; t < T; ++t) {
    factors[t] = shrunk + tokens[t] * args.token_stride;
    to[t] = output + tokens[t] * args.output_stride;
    for (int r = 0; r < R; ++r) {
      sums[t][r] = args.add ? Output::load(to[t] + r * Floats::kLanes, part) : Floats::zero();
    }
  }
  for (int64_t k = 0; k < rank; ++k) {
    Floats w[R];
    for (int r = 0; r < R; ++r) {
      w[r] = Weight::load(weight + k * weight_stride + r * Floats::kLanes, part);
    }
    for (int t = 0; t < T; ++t) {
      const Floats x = Floats::all(factors[t][k]);
      for (int r = 0; r < R; ++r) sums[t][r].add_product(x, w[r]);
    }
  }
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) Output::store(sums[t][r], to[t] + r * Floats::kLanes, part);
  }
}

template <typename Weight, typename Output, int R, typename Part>
inline void expand_columns(const LoraExpandArgs& args, const LoraRun& run, int64_t rank,
                           const float* shrunk, const typename Weight::Stored* weight,
                           int64_t weight_stride, typename Output::Stored* output, Part part) {
  int64_t t = 0;
  for (; t + kLoraTokens <= run.count; t += kLoraTokens) {
    expand_tile<Weight, Output, kLoraTokens, R>(args, run.tokens + t, rank, shrunk, weight,
                                                weight_stride, output, part);
  }
  for (; t < run.count; ++t) {
    expand_tile<Weight, Output, 1, R>(args, run.tokens + t, rank, shrunk, weight, weight_stride,
                                      output, part);
  }
}

// Columns [first, first + kLoraColumns) of one run and slice.
template <typename Weight, typename Output>
inline void expand_block(const LoraExpandArgs& args, const LoraRun& run, int64_t slice,
                         int64_t first) {
  constexpr int kRegisters = 4;
  const LoraBatch& batch = args.batch;
  const LoraSlice& of = batch.slices[slice];
  const int64_t rank = lora_rank_of(batch, slice, run.adapter);
  if (rank == 0 && args.add) return;
  const auto* weight =
      static_cast<const typename Weight::Stored*>(of.weight) + run.adapter * of.adapter_stride;
  const float* shrunk = args.shrunk + slice * args.slice_stride;
  auto* output = static_cast<typename Output::Stored*>(args.output) + of.offset;
  const int64_t end = first + kLoraColumns < of.columns ? first + kLoraColumns : of.columns;
  int64_t c = first;
  for (; c + kRegisters * Floats::kLanes <= end; c += kRegisters * Floats::kLanes) {
    expand_columns<Weight, Output, kRegisters>(args, run, rank, shrunk, weight + c, of.rank_stride,
                                               output + c, Whole{});
  }
  for_registers(end - c, [&](int64_t i, auto part) {
    expand_columns<Weight, Output, 1>(args, run, rank, shrunk, weight + c + i, of.rank_stride,
                                      output + c + i, part);
  });
}

// Range over runs times blocks of columns, the slices' one behind the other.
inline void lora_expand(const LoraExpandArgs& args, int64_t begin, int64_t end) {
  const LoraBatch& batch = args.batch;
  const auto blocks_of = [&](int64_t slice) {
    return (batch.slices[slice].columns + kLoraColumns - 1) / kLoraColumns;
  };
  int64_t blocks = 0;
  for (int64_t s = 0; s < batch.slice_count; ++s) blocks += blocks_of(s);
  with_element(batch.weight_type, [&](auto weight) {
    with_element(args.output_type, [&](auto output) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t slice = 0, block = i % blocks;
        for (; block >= blocks_of(slice); ++slice) block -= blocks_of(slice);
        expand_block<decltype(weight), decltype(output)>(args, batch.runs[i / blocks], slice,
                                                         block * kLoraColumns);
      }
    });
  });
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
