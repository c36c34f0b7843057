// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the kernels that a mixture of experts is made of. Plain data: no inline code is
// emitted from this header.
//
// A token goes through the experts that were chosen for it. What is computed are rows: one for each
// choice of each token, the rows of an expert one behind the other, in the order of their tokens.
#pragma once

#include <cstdint>

#include "gemm/packed_linear_args.h"
#include "vec/rows.h"

namespace anvil::kernels {

// Some rows of one expert.
struct ExpertBlock {
  int64_t expert;
  int64_t row, rows;  // at most kBlockRows
};

// Which input each row is made of.
struct GatherRowsArgs {
  PackedLinearArgs product;     // whose input they are: [tokens, depth]; `prepared` is written
  const int32_t* token_of_row;  // [rows]
};

// Rows times the weights of their experts. `product` has all rows, and the weight of expert 0.
struct ExpertProductArgs {
  PackedLinearArgs product;
  int64_t expert_bytes;  // from one expert's weight to the next
  const ExpertBlock* blocks;
  int64_t num_blocks;
};

// output[t] = sum over c of weights[t, c] * rows[row_of_choice[t, c]], in the order of c, without
// choices whose row is -1.
struct CombineRowsArgs {
  const float* rows;             // [rows, size]
  const int32_t* row_of_choice;  // [tokens, choices]
  const float* weights;          // [tokens, choices]
  int64_t weights_stride;        // elements between tokens
  void* output;                  // [tokens, size], contiguous
  ElementType output_type;
  int64_t choices, size;
};

// The most experts that choose_experts takes.
constexpr int64_t kMostExperts = 4096;

enum class Scoring : uint8_t { kSoftmax, kSigmoid };

// The `choices` experts with the greatest scores, the greatest first, of equal ones the first; with
// a bias the greatest sums of score and bias. A score of NaN is the least. Weights are the scores,
// divided by their sum where they are renormalised, times `scale`.
struct ChooseExpertsArgs {
  Rows logits;        // [tokens, experts]
  const float* bias;  // [experts] or null
  const bool* skip;   // [tokens] or null: tokens that get -1 for experts, and weights of 0
  float* weights;     // [tokens, choices], contiguous
  void* ids;          // [tokens, choices], contiguous
  bool ids_are_int32;
  int64_t experts, choices;
  Scoring scoring;
  bool renormalize;
  float scale;
};

}  // namespace anvil::kernels
