// SPDX-License-Identifier: Apache-2.0
//
// Sixteen elements of a byte each at a time, and 32 as bfloat16: AVX-512 F, BW, DQ, VL. Included by
// cache_elements-inl.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

inline __m128i load_bytes(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}
inline __m128i load_bytes(const void* from, int64_t count) {
  return _mm_maskz_loadu_epi8(static_cast<__mmask16>(first_lanes(count)), from);
}
inline void store_bytes(__m128i bytes, void* to) {
  _mm_storeu_si128(static_cast<__m128i*>(to), bytes);
}
inline void store_bytes(__m128i bytes, void* to, int64_t count) {
  _mm_mask_storeu_epi8(to, static_cast<__mmask16>(first_lanes(count)), bytes);
}

inline Floats e4m3_floats(__m128i bytes) {
  // As half precision numbers, whose bias is larger by 8, they are too small by 2^8.
  const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
  const __m256i half = _mm256_and_si256(shifted, _mm256_set1_epi16(int16_t(0xbf80)));
  const __mmask16 number = _mm_cmpneq_epi8_mask(_mm_add_epi8(bytes, bytes), _mm_set1_epi8(-2));
  const __m512 nan = _mm512_set1_ps(__builtin_nanf(""));
  return {_mm512_mask_mul_ps(nan, number, _mm512_cvtph_ps(half), _mm512_set1_ps(0x1p8f))};
}

inline Floats e5m2_floats(__m128i bytes) {
  return {_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8))};
}

inline Floats int8_floats(__m128i bytes) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}

template <typename Format>
inline __m128i float8_bytes(Floats x) {
  using Rounding = Float8Rounding<Format>;
  const __m512 magnitude = x.magnitude().min(Floats::all(Format::kGreatest)).value;
  const __m512i bits = _mm512_castps_si512(magnitude);
  const __m512i odd =
      _mm512_and_si512(_mm512_srli_epi32(bits, Rounding::kShift), _mm512_set1_epi32(1));
  const __m512i biased =
      _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(Rounding::kRounding));
  const __m512i normal = _mm512_srli_epi32(biased, Rounding::kShift);
  const __m512 counter = _mm512_set1_ps(Rounding::kCounter);
  const __m512i counted = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(magnitude, counter)),
                                           _mm512_castps_si512(counter));
  const __mmask16 tiny =
      _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(Format::kLeastNormal), _CMP_LT_OQ);
  __m512i code = _mm512_mask_mov_epi32(normal, tiny, counted);
  code = _mm512_mask_mov_epi32(code, static_cast<__mmask16>(x.nan()), _mm512_set1_epi32(0x7f));
  // Bit by bit: the code, or the sign where the third operand has a one.
  const __m512i sign = _mm512_srli_epi32(_mm512_castps_si512(x.value), 24);
  return _mm512_cvtepi32_epi8(_mm512_ternarylogic_epi32(code, sign, _mm512_set1_epi32(0x80), 0xd8));
}

inline __m128i int8_bytes(Floats x) {
  const Floats clamped = x.max(Floats::all(-128.0f)).min(Floats::all(127.0f));
  const __mmask16 number = _mm512_cmp_ps_mask(x.value, x.value, _CMP_ORD_Q);
  return _mm512_cvtepi32_epi8(_mm512_maskz_cvtps_epi32(number, clamped.value));
}

// --- 32 elements as bfloat16, in order, exactly: what products of bfloat16 are made of ---

inline __m256i load_32_bytes(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
// The first `count` of them, up to all 32; the others 0.
inline __m256i load_32_bytes(const void* from, int64_t count) {
  return _mm256_maskz_loadu_epi8(_bzhi_u32(~0u, static_cast<unsigned>(count)), from);
}

// A float8's bits are moved into place, its sign apart; added to them, an offset gives the
// bfloat16. It is the other bias for normal numbers. The subnormal ones, which are normal in
// bfloat16, and those that are not finite have theirs in a table, by their lowest five bits.
template <typename Format>
inline __m512i bf16_of_float8(__m256i bytes, __mmask32 special, const uint16_t (&offsets)[32]) {
  constexpr int kShift = 7 - Format::kMantissaBits;
  const __m512i words = _mm512_cvtepi8_epi16(bytes);
  const __m512i moved =
      _mm512_and_si512(_mm512_slli_epi16(words, kShift),
                       _mm512_set1_epi16(static_cast<int16_t>(0x8000 | 0x7f << kShift)));
  const __m512i bias = _mm512_set1_epi16(int16_t{127 - Format::kBias} << 7);
  const __m512i offset =
      _mm512_mask_permutexvar_epi16(bias, special, words, _mm512_load_si512(offsets));
  return _mm512_add_epi16(moved, offset);
}

inline __m512i bf16_of_e4m3(__m256i bytes) {
  // m * 2^-9 for m = 0 .. 7, less what m is moved to; NaN at 31.
  alignas(64) static constexpr uint16_t kOffsets[32] = {
      0,           0x3b00 - 16, 0x3b80 - 32, 0x3bc0 - 48,
      0x3c00 - 64, 0x3c20 - 80, 0x3c40 - 96, 0x3c60 - 112,
      0,           0,           0,           0,
      0,           0,           0,           0,
      0,           0,           0,           0,
      0,           0,           0,           0,
      0,           0,           0,           0,
      0,           0,           0,           0x7fc0 - (0x7f << 4)};
  // Twice the byte has no sign: special are 0 to 14 and 254.
  const __m256i magnitude = _mm256_add_epi8(bytes, bytes);
  const __mmask32 special =
      _mm256_cmple_epu8_mask(_mm256_add_epi8(magnitude, _mm256_set1_epi8(2)), _mm256_set1_epi8(16));
  return bf16_of_float8<E4m3Format>(bytes, special, kOffsets);
}

inline __m512i bf16_of_e5m2(__m256i bytes) {
  // m * 2^-16 for m = 0 .. 3, less what m is moved to; infinity at 28, NaN from 29.
  alignas(64) static constexpr uint16_t kOffsets[32] = {0,
                                                        0x3780 - 32,
                                                        0x3800 - 64,
                                                        0x3840 - 96,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0,
                                                        0x7f80 - (0x7c << 5),
                                                        0x7fc0 - (0x7d << 5),
                                                        0x7fc0 - (0x7e << 5),
                                                        0x7fc0 - (0x7f << 5)};
  // Twice the byte has no sign: special are 0 to 6 and 248 to 254.
  const __m256i magnitude = _mm256_add_epi8(bytes, bytes);
  const __mmask32 special =
      _mm256_cmplt_epu8_mask(_mm256_add_epi8(magnitude, _mm256_set1_epi8(8)), _mm256_set1_epi8(16));
  return bf16_of_float8<E5m2Format>(bytes, special, kOffsets);
}

inline __m512i bf16_of_int8(__m128i low, __m128i high) {
  // Eight bits fit, so that the upper halves of float32 are the numbers.
  const __m512i upper_halves =
      _mm512_set_epi32(0x003f003d, 0x003b0039, 0x00370035, 0x00330031, 0x002f002d, 0x002b0029,
                       0x00270025, 0x00230021, 0x001f001d, 0x001b0019, 0x00170015, 0x00130011,
                       0x000f000d, 0x000b0009, 0x00070005, 0x00030001);
  return _mm512_permutex2var_epi16(_mm512_castps_si512(int8_floats(low).value), upper_halves,
                                   _mm512_castps_si512(int8_floats(high).value));
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
