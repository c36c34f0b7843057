// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the sampling kernels. Plain data: no inline code is emitted from this header.
#pragma once

#include <cstdint>

namespace anvil::kernels {

// Rows of logits, masked in place to their most likely tokens.
struct TopkToppArgs {
  float* logits;       // [rows, vocab_size]
  const int32_t* k;    // [rows], or null: no top-k
  const float* p;      // [rows], or null: no top-p
  float* scratch;      // [vocab_size + kTopkToppSlack], of the caller's thread alone
  int64_t row_stride;  // elements between rows
  int64_t vocab_size;
  float mask_value;  // what the dropped tokens get
};

// Elements of scratch beyond the vocabulary: whole registers are stored behind what counts.
constexpr int64_t kTopkToppSlack = 16;

}  // namespace anvil::kernels
