// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the kernels that measure a machine. Plain data: no inline code is emitted from this
// header.
#pragma once

#include <cstdint>

#include "element_type.h"

namespace anvil::kernels {

struct CeilingArithmeticArgs {
  const void* seed;  // [count] numbers that the arithmetic begins with; at least one
  int64_t count;
  ElementType type;
  int64_t steps;  // rounds of a fixed number of operations
};

struct CeilingArithmeticResult {
  double operations;  // multiplications and additions done
  double checksum;    // sum of everything that was computed
};

}  // namespace anvil::kernels
