// SPDX-License-Identifier: Apache-2.0
//
// Compiled once per instruction set, with ANVIL_ISA_NAMESPACE and ANVIL_VECTOR_BYTES defined and
// the flags of that set's kernels.
#include "vec_functions.h"

#include "vec/elements-inl.h"
#include "vec/math-inl.h"

#define ANVIL_STRING_OF(x) #x
#define ANVIL_NAME_OF(x) ANVIL_STRING_OF(x)

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

template <Floats function(Floats)>
void of_floats(const float* x, int64_t count, float* results) {
  for_registers(count, [&](int64_t i, auto part) {
    Float32::store(function(Float32::load(x + i, part)), results + i, part);
  });
}

template <typename From, typename To>
void convert(const typename From::Stored* x, int64_t count, typename To::Stored* results) {
  for_registers(
      count, [&](int64_t i, auto part) { To::store(From::load(x + i, part), results + i, part); });
}

extern const VecFunctions vec_functions;
constinit const VecFunctions vec_functions = {
    .isa = ANVIL_NAME_OF(ANVIL_ISA_NAMESPACE),
    .exp = of_floats<exp>,
    .log = of_floats<log>,
    .tanh = of_floats<tanh>,
    .sigmoid = of_floats<sigmoid>,
    .erf = of_floats<erf>,
    .normal_cdf = of_floats<normal_cdf>,
    .to_bf16 = convert<Float32, Bf16>,
    .to_fp16 = convert<Float32, Fp16>,
    .of_bf16 = convert<Bf16, Float32>,
    .of_fp16 = convert<Fp16, Float32>,
};

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
