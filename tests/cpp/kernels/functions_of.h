// SPDX-License-Identifier: Apache-2.0
//
// The functions of csrc/kernels/vec as one instruction set's flags compile them.
#pragma once

#include <gtest/gtest.h>

#include <string_view>

#include "vec_functions.h"

namespace anvil::kernels {
namespace scalar {
extern const VecFunctions vec_functions;
}
#ifdef ANVIL_X86_TABLES
namespace avx2 {
extern const VecFunctions vec_functions;
}
namespace avx512 {
extern const VecFunctions vec_functions;
}
namespace avx512_bf16 {
extern const VecFunctions vec_functions;
}
#endif

inline const VecFunctions& functions_of(std::string_view isa) {
#ifdef ANVIL_X86_TABLES
  for (const VecFunctions* set :
       {&avx2::vec_functions, &avx512::vec_functions, &avx512_bf16::vec_functions}) {
    if (set->isa == isa) return *set;
  }
#endif
  EXPECT_EQ(isa, scalar::vec_functions.isa);
  return scalar::vec_functions;
}

}  // namespace anvil::kernels
