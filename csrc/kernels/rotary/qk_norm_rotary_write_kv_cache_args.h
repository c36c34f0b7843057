// SPDX-License-Identifier: Apache-2.0
//
// Arguments of what happens to a token between its projection and its attention. Plain data: no
// inline code is emitted from this header.
#pragma once

#include <cstdint>

#include "norm/norm_args.h"
#include "rotary/rotary_args.h"

namespace anvil::kernels {

// One side of the paged cache, keys or values. Strides are in elements; a head's elements are
// contiguous.
struct PagedStates {
  void* data;  // [num_blocks, block_size, heads, head_size]
  ElementType type;
  int64_t block_stride;
  int64_t token_stride;
  int64_t head_stride;
};

struct QkNormRotaryWriteKvCacheArgs {
  RotaryArgs rotary;  // its query and its key are normed, turned, and kept where they lie
  bool normed;        // otherwise the norms are not looked at
  RmsNormParameters query_norm;  // of head_size elements
  RmsNormParameters key_norm;    // likewise
  HeadStates value;              // read
  int64_t head_size;             // of queries and keys
  int64_t value_head_size;
  PagedStates key_cache;  // of the heads of `key`
  PagedStates value_cache;
  const int64_t* slot_mapping;  // [slots]; negative: not written; must be below the cache's end
  int64_t slots;                // tokens from there on are not written either
  int64_t block_size;
};

}  // namespace anvil::kernels
