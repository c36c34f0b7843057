// SPDX-License-Identifier: Apache-2.0
//
// Compiled once per instruction set, with ANVIL_ISA_NAMESPACE and ANVIL_VECTOR_BYTES defined and
// the flags of that set's kernels.
#include "vec_functions.h"

#include "vec/cache_elements-inl.h"
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

template <typename Element>
void narrow_bytes(const float* x, int64_t count, uint8_t* results) {
  convert<Float32, Element>(x, count, reinterpret_cast<typename Element::Stored*>(results));
}

template <typename Element>
void widen_bytes(const uint8_t* x, int64_t count, float* results) {
  convert<Element, Float32>(reinterpret_cast<const typename Element::Stored*>(x), count, results);
}

template <typename Element>
float widen_one(uint8_t x) {
  return Element::widen(static_cast<typename Element::Stored>(x));
}

#if ANVIL_VECTOR_BYTES == 64
template <typename Element>
void widen_to_bf16(const uint8_t* x, int64_t count, uint16_t* results) {
  const auto* from = reinterpret_cast<const typename Element::Stored*>(x);
  for (; count >= 32; count -= 32, from += 32, results += 32) {
    _mm512_storeu_si512(results, Element::widen_to_bf16(from));
  }
  const __m512i rest = Element::widen_to_bf16(from, count);
  _mm512_mask_storeu_epi16(results, _bzhi_u32(~0u, static_cast<unsigned>(count)), rest);
}
#else
template <typename Element>
constexpr auto widen_to_bf16 = nullptr;
#endif

template <typename Element>
constexpr VecFunctions::ByteElement byte_element = {narrow_bytes<Element>, widen_bytes<Element>,
                                                    widen_one<Element>, widen_to_bf16<Element>};

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
    .e4m3 = byte_element<E4m3>,
    .e5m2 = byte_element<E5m2>,
    .int8 = byte_element<Int8>,
};

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
