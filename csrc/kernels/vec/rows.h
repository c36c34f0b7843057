// SPDX-License-Identifier: Apache-2.0
//
// Rows of floating-point values, as kernels that go row by row get them. Plain data: no inline code
// is emitted from this header.
#pragma once

#include <cstdint>

#include "element_type.h"

namespace anvil::kernels {

constexpr int kMaxRowDims = 4;

// Rows without gaps inside, at strides of up to kMaxRowDims dimensions. Row r is counted as in a
// contiguous tensor: the last of the dimensions goes fastest.
struct Rows {
  void* data;  // element 0 of row 0; who only reads does not write through it
  ElementType type;
  int dims;                      // at least 1
  int64_t sizes[kMaxRowDims];    // the first is not looked at
  int64_t strides[kMaxRowDims];  // in elements
};

// A row of parameters without gaps; data is null where there is none.
struct Parameters {
  const void* data;
  ElementType type;
};

}  // namespace anvil::kernels
