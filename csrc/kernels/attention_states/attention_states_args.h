// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the kernels on partial attention. Plain data: no inline code is emitted from this
// header.
#pragma once

#include <cstdint>

#include "element_type.h"

namespace anvil::kernels {

// Attention over one part of the keys: the output, and the logarithm of the sum of exponentials.
// Strides are in elements; the last dimension of the output is contiguous.
struct AttentionPart {
  const void* output;  // [tokens, heads, head_size]
  int64_t token_stride;
  int64_t head_stride;
  const float* lse;  // [heads, tokens]
  int64_t lse_head_stride;
  int64_t lse_token_stride;
};

struct MergeAttnStatesArgs {
  AttentionPart prefix;
  AttentionPart suffix;
  ElementType type;  // of all outputs
  void* output;      // [tokens, heads, head_size], contiguous
  float* lse;        // [heads, tokens], contiguous
  int64_t tokens;
  int64_t heads;
  int64_t head_size;
};

}  // namespace anvil::kernels
