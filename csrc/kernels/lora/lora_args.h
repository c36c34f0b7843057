// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the two products of a low-rank adapter. Plain data: no inline code is emitted from
// this header.
#pragma once

#include <cstdint>

#include "element_type.h"

namespace anvil::kernels {

// Tokens of one adapter, at most kLoraRunTokens of them.
struct LoraRun {
  int64_t adapter;
  const int32_t* tokens;  // row numbers of the input and the output
  int64_t count;
};

constexpr int64_t kLoraRunTokens = 64;  // inputs that stay in the cache while weights go by
constexpr int64_t kLoraRankBlock = 8;   // rows of A that make up one item of work
constexpr int64_t kLoraColumns = 128;   // columns of B that make up one item of work

// One projection of several that share an input: its matrix for every adapter.
struct LoraSlice {
  const void* weight;
  int64_t adapter_stride;  // elements between adapters
  int64_t rank_stride;     // elements between what belongs to neighbouring ranks
  int64_t columns;         // of B
  int64_t offset;          // of B's first column in the output
};

struct LoraBatch {
  const LoraRun* runs;
  int64_t run_count;
  const LoraSlice* slices;
  int64_t slice_count;
  ElementType weight_type;
  const int32_t* ranks;  // [slices, adapters] in use, in [0, rank], or null: all of them are
  int64_t adapters;
  int64_t rank;
};

// shrunk[slice, token] = scale * (A[slice, adapter] x input[token]); 0 for ranks not in use.
struct LoraShrinkArgs {
  LoraBatch batch;  // the weights are [adapters, rank, depth], the depth contiguous
  const void* input;
  ElementType input_type;
  int64_t input_stride;  // elements between tokens
  int64_t depth;
  float* shrunk;         // [slices, tokens, rank]
  int64_t slice_stride;  // elements between slices
  int64_t token_stride;
  float scale;
};

// output[token, columns of the slice] (+)= B[slice, adapter] x shrunk[slice, token].
struct LoraExpandArgs {
  LoraBatch batch;  // the weights are [adapters, rank, columns], the columns contiguous
  const float* shrunk;
  int64_t slice_stride;
  int64_t token_stride;
  void* output;
  ElementType output_type;
  int64_t output_stride;  // elements between tokens
  bool add;               // to what is there
};

}  // namespace anvil::kernels
