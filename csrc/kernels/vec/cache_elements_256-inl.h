// SPDX-License-Identifier: Apache-2.0
//
// Eight elements of a byte each at a time: AVX2, F16C. Included by cache_elements-inl.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// There are no masks for bytes here: parts of a register go through memory of their own.
inline __m128i load_bytes(const void* from) {
  return _mm_loadl_epi64(static_cast<const __m128i*>(from));
}
inline __m128i load_bytes(const void* from, int64_t count) {
  uint8_t whole[Floats::kLanes] = {};
  for (int64_t i = 0; i < count; ++i) whole[i] = static_cast<const uint8_t*>(from)[i];
  return load_bytes(whole);
}
inline void store_bytes(__m128i bytes, void* to) {
  _mm_storel_epi64(static_cast<__m128i*>(to), bytes);
}
inline void store_bytes(__m128i bytes, void* to, int64_t count) {
  uint8_t whole[Floats::kLanes];
  store_bytes(bytes, whole);
  for (int64_t i = 0; i < count; ++i) static_cast<uint8_t*>(to)[i] = whole[i];
}

inline Floats e4m3_floats(__m128i bytes) {
  // As half precision numbers, whose bias is larger by 8, they are too small by 2^8. NaN would be
  // a number there, and is filled with ones.
  const __m128i shifted = _mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7);
  const __m128i magnitude = _mm_and_si128(shifted, _mm_set1_epi16(0x3f80));
  const __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x3f80));
  const __m128i half = _mm_or_si128(_mm_and_si128(shifted, _mm_set1_epi16(int16_t(0xbf80))), nan);
  return {_mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(0x1p8f))};
}

inline Floats e5m2_floats(__m128i bytes) {
  return {_mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), bytes))};
}

inline Floats int8_floats(__m128i bytes) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))};
}

// The lowest bytes of eight lanes.
inline __m128i lowest_bytes(__m256i lanes) {
  const __m256i first = _mm256_set1_epi32(0x0c080400);
  const __m256i packed = _mm256_shuffle_epi8(lanes, first);
  return _mm_unpacklo_epi32(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
}

template <typename Format>
inline __m128i float8_bytes(Floats x) {
  using Rounding = Float8Rounding<Format>;
  const __m256 magnitude = x.magnitude().min(Floats::all(Format::kGreatest)).value;
  const __m256i bits = _mm256_castps_si256(magnitude);
  const __m256i odd =
      _mm256_and_si256(_mm256_srli_epi32(bits, Rounding::kShift), _mm256_set1_epi32(1));
  const __m256i biased =
      _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(Rounding::kRounding));
  const __m256i normal = _mm256_srli_epi32(biased, Rounding::kShift);
  const __m256 counter = _mm256_set1_ps(Rounding::kCounter);
  const __m256i counted = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(magnitude, counter)),
                                           _mm256_castps_si256(counter));
  const __m256 tiny = _mm256_cmp_ps(magnitude, _mm256_set1_ps(Format::kLeastNormal), _CMP_LT_OQ);
  const __m256 nan = _mm256_cmp_ps(x.value, x.value, _CMP_UNORD_Q);
  __m256i code = _mm256_blendv_epi8(normal, counted, _mm256_castps_si256(tiny));
  code = _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7f), _mm256_castps_si256(nan));
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(x.value), 24),
                                        _mm256_set1_epi32(0x80));
  return lowest_bytes(_mm256_or_si256(code, sign));
}

inline __m128i int8_bytes(Floats x) {
  const Floats clamped = x.max(Floats::all(-128.0f)).min(Floats::all(127.0f));
  const __m256 number = _mm256_cmp_ps(x.value, x.value, _CMP_ORD_Q);
  return lowest_bytes(_mm256_cvtps_epi32(_mm256_and_ps(clamped.value, number)));
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
