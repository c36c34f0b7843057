// SPDX-License-Identifier: Apache-2.0
//
// Arguments of linear layers over packed weights. Plain data: no inline code is emitted from this
// header.
//
// A packed weight is made of strips of kStripColumns output columns, one behind the other. A strip
// goes through the depth in units of as many elements as the widest dot product takes at once:
//   bfloat16          [strips][depth / 2][kStripColumns][2], an odd depth rounded up
//   float16, float32  [strips][depth][kStripColumns]
// What lies past the last column or the depth is zero.
#pragma once

#include <cstdint>

#include "element_type.h"

namespace anvil::kernels {

constexpr int64_t kStripColumns = 16;

// Rows that share one pass over the weights, about: work is divided by blocks of rows.
constexpr int64_t kBlockRows = 192;

// What of an input is rounded to the weight's type before it is multiplied: nothing; all; or, with
// weights of bfloat16, all but the pair of each four that loses most by it, which keeps twice as
// many bits (kept_remainders-inl.h).
enum class InputRounding { kNone, kMost, kAll };

// output = input x weight^T + bias. Products of bfloat16 with bfloat16 may take the processor's dot
// products; others are float32. Sums are float32 and go through the depth in one order.
//
// A product may want its input in another form than it has. It is brought into that form once, row
// by row, before any output is computed: prepare_linear_input.
struct PackedLinearArgs {
  const void* input;     // [rows, depth], elements of a row without gaps
  int64_t input_stride;  // elements between rows
  ElementType input_type;
  const void* weight;  // packed
  ElementType weight_type;
  const void* bias;  // [columns] or null
  ElementType bias_type;
  void* output;  // [rows, columns], contiguous
  ElementType output_type;
  int64_t rows;
  int64_t columns;
  int64_t depth;
  int64_t row_blocks;  // into which the rows are divided evenly; at most kBlockRows rows each
  InputRounding rounding = InputRounding::kNone;
  void* prepared = nullptr;  // [rows][linear_input_bytes], unless that is 0
};

// Between [columns, depth] and the packed form of the same type.
struct PackArgs {
  void* plain;
  int64_t plain_stride;  // elements between columns
  void* packed;
  ElementType type;
  int64_t columns;
  int64_t depth;
};

}  // namespace anvil::kernels
