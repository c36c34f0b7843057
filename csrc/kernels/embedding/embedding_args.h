// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the embedding. Plain data: no inline code is emitted from this header.
#pragma once

#include <cstdint>

#include "element_type.h"

namespace anvil::kernels {

// Rows of a table by number, as they are or converted.
struct EmbeddingArgs {
  const void* ids;  // [count], int64, or int32 where ids_are_int32; in range
  bool ids_are_int32;
  const void* weight;     // [rows, hidden]
  int64_t weight_stride;  // elements between rows
  ElementType weight_type;
  void* output;  // [count, hidden], contiguous
  ElementType output_type;
  int64_t hidden;
};

}  // namespace anvil::kernels
