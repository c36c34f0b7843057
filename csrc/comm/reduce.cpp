// SPDX-License-Identifier: Apache-2.0
#include "reduce.h"

namespace anvil::comm {

namespace baseline {
extern const ReduceTable reduce_table;
}
#if defined(ANVIL_COMM_X86)
namespace avx2 {
extern const ReduceTable reduce_table;
}
namespace avx512 {
extern const ReduceTable reduce_table;
}
#endif

const ReduceTable* RunnableReduceTable(int index) {
#if defined(ANVIL_COMM_X86)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx512 && index-- == 0) return &avx512::reduce_table;
  if (has_avx2 && index-- == 0) return &avx2::reduce_table;
#endif
  return index == 0 ? &baseline::reduce_table : nullptr;
}

ReduceFn FindReduce(DataType type, ReduceOp op) {
  static const ReduceTable& table = *RunnableReduceTable(0);
  return table.functions[static_cast<int>(type)][static_cast<int>(op)];
}

}  // namespace anvil::comm
