// SPDX-License-Identifier: Apache-2.0
//
// Inputs that are mostly rounded to bfloat16. Of every four pairs of them one keeps what rounding
// takes from it, its remainder, as a second pair of bfloat16: the one with the largest remainder. A
// few inputs of a model are many times the others, and make most of the error of
// rounding.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "gemm/packed_linear_args.h"
#include "vec/elements-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

constexpr int kGroupPairs = 4;
constexpr int64_t kGroupDepth = 2 * kGroupPairs;

// A group as a product reads it. `place` is an int32: elements of a strip from the group's first
// pair to the one that has the remainder.
struct MostlyRounded {
  uint16_t rounded[kGroupDepth];
  uint16_t remainder[2];
  uint16_t place[2];

  void keep(const uint16_t* pair, int32_t number) {
    __builtin_memcpy(remainder, pair, sizeof(remainder));
    number *= 2 * static_cast<int32_t>(kStripColumns);
    __builtin_memcpy(place, &number, sizeof(place));
  }
};
constexpr int64_t kGroupElements = sizeof(MostlyRounded) / sizeof(uint16_t);

#if defined(__AVX512BF16__)

// The groups of the first and of the last eight lanes.
inline void round_mostly(Floats x, MostlyRounded (&groups)[2]) {
  const auto half = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.value));
  const __m512 rounded = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  __m512 rest = _mm512_sub_ps(x.value, rounded);
  constexpr int kNanOrInfinity = 0x99;
  const __mmask16 finite = _knot_mask16(_mm512_fpclass_ps_mask(rest, kNanOrInfinity));
  rest = _mm512_maskz_mov_ps(finite, rest);
  // What a pair loses at most, as whole numbers in the same order, whose last two bits are the
  // pair's place: the first of equal ones is the largest.
  const __m512 lost = _mm512_abs_ps(rest);
  const __m512 most = _mm512_max_ps(lost, _mm512_permute_ps(lost, 0xB1));
  const __m512i places = _mm512_set_epi32(0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3);
  __m512i key =
      _mm512_or_si512(_mm512_andnot_si512(_mm512_set1_epi32(3), _mm512_castps_si512(most)), places);
  key = _mm512_max_epi32(key, _mm512_shuffle_epi32(key, _MM_PERM_BADC));
  key = _mm512_max_epi32(key, _mm512_shuffle_i64x2(key, key, 0xB1));
  const int32_t first = 3 - (_mm512_cvtsi512_si32(key) & 3);
  const int32_t last = 3 - (_mm_cvtsi128_si32(_mm512_extracti32x4_epi32(key, 2)) & 3);
  uint16_t remainders[2 * kGroupDepth];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(remainders),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(rest)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(groups[0].rounded), _mm256_castsi256_si128(half));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(groups[1].rounded),
                   _mm256_extracti128_si256(half, 1));
  groups[0].keep(remainders + 2 * first, first);
  groups[1].keep(remainders + kGroupDepth + 2 * last, last);
}

#endif

// The same numbers as float32, where the processor has no products of bfloat16: x is replaced.
inline void round_mostly(float (&x)[kGroupDepth]) {
  float rounded[kGroupDepth], rest[kGroupDepth];
  int32_t most = -1;
  int kept = 0;
  for (int i = 0; i < kGroupDepth; ++i) {
    rounded[i] = widen_bf16(narrow_bf16(x[i]));
    rest[i] = x[i] - rounded[i];
    if (!(__builtin_fabsf(rest[i]) <= __FLT_MAX__)) rest[i] = 0;
  }
  for (int pair = 0; pair < kGroupPairs; ++pair) {
    const float one = __builtin_fabsf(rest[2 * pair]), other = __builtin_fabsf(rest[2 * pair + 1]);
    const float larger = one > other ? one : other;
    int32_t key;
    __builtin_memcpy(&key, &larger, sizeof(key));
    key &= ~3;
    if (key > most) most = key, kept = pair;
  }
  for (int i = 0; i < kGroupDepth; ++i) {
    x[i] = rounded[i] + (i / 2 == kept ? widen_bf16(narrow_bf16(rest[i])) : 0.0f);
  }
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
