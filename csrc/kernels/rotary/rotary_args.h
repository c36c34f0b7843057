// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the rotary embedding. Plain data: no inline code is emitted from this header.
#pragma once

#include <cstdint>

#include "element_type.h"

namespace anvil::kernels {

// Queries, keys or values of each token. Strides are in elements; a head's elements are contiguous.
struct HeadStates {
  void* data;  // [tokens, heads, head_size]
  int64_t token_stride;
  int64_t head_stride;
  int64_t heads;  // 0: there are none
  ElementType type;
};

struct RotaryArgs {
  // [tokens] int64, or int32 where positions_are_int32; [3, tokens] where `multimodal`. In range.
  const void* positions;
  int64_t position_stride;
  int64_t axis_stride;
  bool positions_are_int32;

  const void* table;  // [max_position, 2 * half]: cosines, then sines
  int64_t table_stride;
  ElementType table_type;
  int64_t half;  // pairs of elements that turn

  bool is_neox;        // pair i is elements i and half + i; otherwise 2i and 2i + 1
  bool multimodal;     // each pair turns by one of three positions
  bool interleaved;    // which of them goes round from pair to pair; otherwise sections follow
  int64_t section[3];  // pairs of each of the three positions

  HeadStates query;  // turned in place
  HeadStates key;    // likewise
};

}  // namespace anvil::kernels
