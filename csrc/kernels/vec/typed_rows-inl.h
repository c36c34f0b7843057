// SPDX-License-Identifier: Apache-2.0
//
// Rows of float32, bfloat16 or float16 read as float32 lanes and stored with one rounding, to the
// nearest and to even on a tie.
//
// Compiled once per instruction set, inside that set's namespace; see bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "element_type.h"
#include "vec/bytes-inl.h"
#include "vec/floats-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

namespace elements {

// Halves the bits of a float32. A NaN stays one: its upper bits alone might be those of infinity.
inline uint16_t narrow_bf16(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline uint16_t narrow_fp16(float value) {
  const _Float16 half = static_cast<_Float16>(value);
  uint16_t bits;
  __builtin_memcpy(&bits, &half, sizeof(bits));
  return bits;
}

#if ANVIL_VECTOR_BYTES == 64

inline void store(float* to, Floats lanes) { _mm512_storeu_ps(to, lanes.value); }

// By integers: the instruction of avx512_bf16 takes subnormal values for zero.
inline void store_bf16(uint16_t* to, Floats lanes) {
  const __m512i bits = _mm512_castps_si512(lanes.value);
  const __m512i upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(lanes.value, lanes.value, _CMP_UNORD_Q);
  const __m512i result = _mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(result));
}

inline void store_fp16(uint16_t* to, Floats lanes) {
  const __m256i half = _mm512_cvtps_ph(lanes.value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), half);
}

#elif ANVIL_VECTOR_BYTES == 32

inline void store(float* to, Floats lanes) { _mm256_storeu_ps(to, lanes.value); }

inline void store_bf16(uint16_t* to, Floats lanes) {
  const __m256i bits = _mm256_castps_si256(lanes.value);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256 nan = _mm256_cmp_ps(lanes.value, lanes.value, _CMP_UNORD_Q);
  const __m256i result = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
  const __m128i half =
      _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), half);
}

inline void store_fp16(uint16_t* to, Floats lanes) {
  const __m128i half = _mm256_cvtps_ph(lanes.value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), half);
}

#else

inline void store(float* to, Floats lanes) { *to = lanes.value; }
inline void store_bf16(uint16_t* to, Floats lanes) { *to = narrow_bf16(lanes.value); }
inline void store_fp16(uint16_t* to, Floats lanes) { *to = narrow_fp16(lanes.value); }

#endif

}  // namespace elements

// How the elements of one type are read and written: a register of them, and a single one.
struct Float32Elements {
  using Type = float;
  static Floats load(const float* from) { return Floats::load(from); }
  static void store(float* to, Floats lanes) { elements::store(to, lanes); }
  static float widen(float value) { return value; }
  static float narrow(float value) { return value; }
};

struct Bfloat16Elements {
  using Type = uint16_t;
  static Floats load(const uint16_t* from) { return Floats::load_bf16(from); }
  static void store(uint16_t* to, Floats lanes) { elements::store_bf16(to, lanes); }
  static float widen(uint16_t bits) { return widen_bf16(bits); }
  static uint16_t narrow(float value) { return elements::narrow_bf16(value); }
};

struct Float16Elements {
  using Type = uint16_t;
  static Floats load(const uint16_t* from) { return Floats::load_fp16(from); }
  static void store(uint16_t* to, Floats lanes) { elements::store_fp16(to, lanes); }
  static float widen(uint16_t bits) { return widen_fp16(bits); }
  static uint16_t narrow(float value) { return elements::narrow_fp16(value); }
};

// Calls function(elements) with what reads and writes `type`.
template <typename Function>
inline void with_elements(ElementType type, const Function& function) {
  switch (type) {
    case ElementType::kFloat32:
      return function(Float32Elements{});
    case ElementType::kBf16:
      return function(Bfloat16Elements{});
    case ElementType::kFp16:
      return function(Float16Elements{});
  }
}

// Converts `count` elements; the two pieces of memory are disjoint.
template <typename To, typename From>
inline void convert_row(typename To::Type* __restrict to,
                        const typename From::Type* __restrict from, int64_t count) {
  int64_t i = 0;
  for (; i + Floats::kLanes <= count; i += Floats::kLanes) To::store(to + i, From::load(from + i));
  for (; i < count; ++i) to[i] = To::narrow(From::widen(from[i]));
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
