// SPDX-License-Identifier: Apache-2.0
//
// Floats for registers of 512 bits: AVX-512 F, BW, DQ, VL. Included by floats-inl.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

struct Floats {
  static constexpr int64_t kLanes = 16;
  __m512 value;

  static Floats zero() { return {_mm512_setzero_ps()}; }
  static Floats all(float x) { return {_mm512_set1_ps(x)}; }

  // `count` below kLanes: the first lanes, the others `rest` (or 0). No other memory is touched.
  static Floats load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static Floats load(const float* from, int64_t count, float rest = 0) {
    return {_mm512_mask_loadu_ps(_mm512_set1_ps(rest), mask(count), from)};
  }
  static Floats load_bf16(const uint16_t* from) {
    return widened_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Floats load_bf16(const uint16_t* from, int64_t count) {
    return widened_bf16(_mm256_maskz_loadu_epi16(mask(count), from));
  }
  static Floats load_fp16(const uint16_t* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
  }
  static Floats load_fp16(const uint16_t* from, int64_t count) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask(count), from))};
  }

  // Half precision: to the nearest, ties to even.
  void store(float* to) const { _mm512_storeu_ps(to, value); }
  void store(float* to, int64_t count) const { _mm512_mask_storeu_ps(to, mask(count), value); }
  void store_bf16(uint16_t* to) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrowed_bf16());
  }
  void store_bf16(uint16_t* to, int64_t count) const {
    _mm256_mask_storeu_epi16(to, mask(count), narrowed_bf16());
  }
  void store_fp16(uint16_t* to) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrowed_fp16());
  }
  void store_fp16(uint16_t* to, int64_t count) const {
    _mm256_mask_storeu_epi16(to, mask(count), narrowed_fp16());
  }
  // Writes the lanes of `bits` one behind the other; writes a whole register.
  void store_packed(float* to, LaneBits bits) const {
    _mm512_storeu_ps(to, _mm512_maskz_compress_ps(static_cast<__mmask16>(bits), value));
  }

  Floats operator+(Floats b) const { return {_mm512_add_ps(value, b.value)}; }
  Floats operator-(Floats b) const { return {_mm512_sub_ps(value, b.value)}; }
  Floats operator*(Floats b) const { return {_mm512_mul_ps(value, b.value)}; }
  Floats operator/(Floats b) const { return {_mm512_div_ps(value, b.value)}; }
  Floats multiply_add(Floats b, Floats c) const {
    return {_mm512_fmadd_ps(value, b.value, c.value)};
  }
  void add_product(Floats a, Floats b) { value = _mm512_fmadd_ps(a.value, b.value, value); }
  // What the rounded product a * b lacks: a * b - rounded.
  static Floats product_rest(Floats a, Floats b, Floats rounded) {
    return {_mm512_fmsub_ps(a.value, b.value, rounded.value)};
  }
  // Where either is NaN, b.
  Floats min(Floats b) const { return {_mm512_min_ps(value, b.value)}; }
  Floats max(Floats b) const { return {_mm512_max_ps(value, b.value)}; }
  Floats magnitude() const { return {_mm512_abs_ps(value)}; }
  Floats with_sign_of(Floats b) const {
    // Bit by bit, the third operand chooses: the sign from b, the rest from here.
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(
        _mm512_castps_si512(value), _mm512_castps_si512(b.value), sign, 0xd8))};
  }

  LaneBits greater(Floats b) const { return _mm512_cmp_ps_mask(value, b.value, _CMP_GT_OQ); }
  LaneBits at_least(Floats b) const { return _mm512_cmp_ps_mask(value, b.value, _CMP_GE_OQ); }
  LaneBits equal(Floats b) const { return _mm512_cmp_ps_mask(value, b.value, _CMP_EQ_OQ); }
  LaneBits nan() const { return _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q); }
  // The lanes of `bits`, the others from b.
  Floats where(LaneBits bits, Floats b) const {
    return {_mm512_mask_mov_ps(b.value, static_cast<__mmask16>(bits), value)};
  }
  // Adds `weight` in the lanes where x >= low.
  void add_where(Floats x, Floats low, Floats weight) {
    const __mmask16 bits = _mm512_cmp_ps_mask(x.value, low.value, _CMP_GE_OQ);
    value = _mm512_mask_add_ps(value, bits, value, weight.value);
  }

  // To the nearest whole number; |value| below 2^22.
  Floats rounded() const {
    return {_mm512_roundscale_ps(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  // value * 2^exponent, rounded once, for whole exponents from -252 to 254 and 1/2 <= value < 2.
  Floats scaled(Floats exponent) const { return {_mm512_scalef_ps(value, exponent.value)}; }
  // fraction * 2^exponent = value, 3/4 <= fraction < 3/2, for finite values above 0.
  void split(Floats& fraction, Floats& exponent) const {
    fraction.value = _mm512_getmant_ps(value, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_zero);
    exponent.value = _mm512_getexp_ps(value);
    const __mmask16 halved = _mm512_cmp_ps_mask(fraction.value, _mm512_set1_ps(1.0f), _CMP_LT_OQ);
    exponent.value =
        _mm512_mask_add_ps(exponent.value, halved, exponent.value, _mm512_set1_ps(1.0f));
  }

  // Lane i: the sum of the lanes of x[i].
  static Floats sums_of(const Floats (&x)[kLanes]) {
    __m512 by4[4];
    for (int i = 0; i < 4; ++i) {
      const __m512 a = pair_sums(x[4 * i].value, x[4 * i + 1].value);
      const __m512 b = pair_sums(x[4 * i + 2].value, x[4 * i + 3].value);
      by4[i] = _mm512_add_ps(low_pairs(a, b), high_pairs(a, b));
    }
    // Each quarter of by4[i] now has one term of the sums 4 i to 4 i + 3.
    return {quarter_sums(quarter_sums(by4[0], by4[1]), quarter_sums(by4[2], by4[3]))};
  }

  // Exchanges rows and lanes: lane j of x[i] becomes lane i of x[j].
  static void transpose(Floats (&x)[kLanes]) {
    __m512 t[kLanes];
    for (int i = 0; i < 16; i += 4) {
      const __m512 a = _mm512_unpacklo_ps(x[i].value, x[i + 1].value);
      const __m512 b = _mm512_unpackhi_ps(x[i].value, x[i + 1].value);
      const __m512 c = _mm512_unpacklo_ps(x[i + 2].value, x[i + 3].value);
      const __m512 d = _mm512_unpackhi_ps(x[i + 2].value, x[i + 3].value);
      t[i] = low_pairs(a, c);
      t[i + 1] = high_pairs(a, c);
      t[i + 2] = low_pairs(b, d);
      t[i + 3] = high_pairs(b, d);
    }
    // Quarter q of t[4 r + j] is lanes 4 q + j of the rows 4 r to 4 r + 3.
    for (int j = 0; j < 4; ++j) {
      const __m512 a = _mm512_shuffle_f32x4(t[j], t[4 + j], 0x88);
      const __m512 b = _mm512_shuffle_f32x4(t[8 + j], t[12 + j], 0x88);
      const __m512 c = _mm512_shuffle_f32x4(t[j], t[4 + j], 0xdd);
      const __m512 d = _mm512_shuffle_f32x4(t[8 + j], t[12 + j], 0xdd);
      x[j].value = _mm512_shuffle_f32x4(a, b, 0x88);
      x[8 + j].value = _mm512_shuffle_f32x4(a, b, 0xdd);
      x[4 + j].value = _mm512_shuffle_f32x4(c, d, 0x88);
      x[12 + j].value = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
  }

  float sum() const { return _mm512_reduce_add_ps(value); }
  float least() const { return _mm512_reduce_min_ps(value); }
  float greatest() const { return _mm512_reduce_max_ps(value); }

 private:
  static __mmask16 mask(int64_t count) { return static_cast<__mmask16>(first_lanes(count)); }

  static __m512 low_pairs(__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
  static __m512 high_pairs(__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
  static __m512 pair_sums(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  }
  static __m512 quarter_sums(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }

  static Floats widened_bf16(__m256i half) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
  }
  __m256i narrowed_bf16() const {
#ifdef __AVX512BF16__
    // The instruction takes subnormal numbers for zero.
    constexpr int kSubnormal = 0x20;
    if (__builtin_expect(_mm512_fpclass_ps_mask(value, kSubnormal) == 0, 1)) {
      const __m256bh half = _mm512_cvtneps_pbh(value);
      __m256i bits;
      __builtin_memcpy(&bits, &half, sizeof(bits));
      return bits;
    }
#endif
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounding = _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_add_epi32(bits, rounding);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40 << 16));
    const __m512i chosen = _mm512_mask_mov_epi32(rounded, static_cast<__mmask16>(nan()), quiet);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16));
  }
  __m256i narrowed_fp16() const {
    return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};

// The lanes of a Floats as float64.
struct Doubles {
  __m512d low, high;

  static Doubles zero() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
  static Doubles all(double x) { return {_mm512_set1_pd(x), _mm512_set1_pd(x)}; }
  static Doubles of(Floats x) {
    return {_mm512_cvtps_pd(_mm512_castps512_ps256(x.value)),
            _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.value, 1))};
  }
  Floats rounded() const {
    return {
        _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1)};
  }
  Doubles operator+(Doubles b) const {
    return {_mm512_add_pd(low, b.low), _mm512_add_pd(high, b.high)};
  }
  Doubles operator-(Doubles b) const {
    return {_mm512_sub_pd(low, b.low), _mm512_sub_pd(high, b.high)};
  }
  Doubles operator*(Doubles b) const {
    return {_mm512_mul_pd(low, b.low), _mm512_mul_pd(high, b.high)};
  }
  void add_square(Doubles x) {
    low = _mm512_fmadd_pd(x.low, x.low, low);
    high = _mm512_fmadd_pd(x.high, x.high, high);
  }
  // The lanes of `bits`, the others 0.
  Doubles where(LaneBits bits) const {
    return {_mm512_maskz_mov_pd(static_cast<__mmask8>(bits), low),
            _mm512_maskz_mov_pd(static_cast<__mmask8>(bits >> 8), high)};
  }
  double sum() const { return _mm512_reduce_add_pd(_mm512_add_pd(low, high)); }
};

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
