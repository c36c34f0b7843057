// SPDX-License-Identifier: Apache-2.0
// Sums and the like over the ranks' elements, always in the order of the ranks.
#pragma once

#include <cstddef>

#include "data_type.h"

namespace anvil::comm {

// out[i] = inputs[0][i] op inputs[1][i] op ... inputs[ranks - 1][i], from left to right, for
// `count` elements. 16-bit floats are reduced in float32 and rounded once; an average is the sum
// divided by the ranks, towards zero for integers. Minima and maxima of floats hand NaN on.
// For bool, sum and max are "or", product and min "and". `out` may be one of the inputs; nothing
// has to be aligned beyond its elements.
using ReduceFn = void (*)(void* out, const void* const* inputs, int ranks, size_t count);

// The reduction for the machine's instruction set; null for the average of bool, which has no
// meaning.
ReduceFn FindReduce(DataType type, ReduceOp op);

// Reductions by type and op, compiled for one instruction set.
struct ReduceTable {
  ReduceFn functions[kDataTypes][kReduceOps];
};
// The tables that this machine can run, the best first; `index` counts from 0. Null behind the
// last.
const ReduceTable* RunnableReduceTable(int index);

}  // namespace anvil::comm
