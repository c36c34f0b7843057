// SPDX-License-Identifier: Apache-2.0
//
// Floats for registers of 256 bits: AVX2, FMA, F16C, BMI2. Included by floats-inl.h; what members
// promise is said in floats_512-inl.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

struct Floats {
  static constexpr int64_t kLanes = 8;
  __m256 value;

  static Floats zero() { return {_mm256_setzero_ps()}; }
  static Floats all(float x) { return {_mm256_set1_ps(x)}; }

  static Floats load(const float* from) { return {_mm256_loadu_ps(from)}; }
  static Floats load(const float* from, int64_t count, float rest = 0) {
    const __m256i mask = expanded(first_lanes(count));
    return {_mm256_blendv_ps(_mm256_set1_ps(rest), _mm256_maskload_ps(from, mask),
                             _mm256_castsi256_ps(mask))};
  }
  static Floats load_bf16(const uint16_t* from) { return widened_bf16(load_halves(from)); }
  static Floats load_bf16(const uint16_t* from, int64_t count) {
    return widened_bf16(load_halves(from, count));
  }
  static Floats load_fp16(const uint16_t* from) { return {_mm256_cvtph_ps(load_halves(from))}; }
  static Floats load_fp16(const uint16_t* from, int64_t count) {
    return {_mm256_cvtph_ps(load_halves(from, count))};
  }

  void store(float* to) const { _mm256_storeu_ps(to, value); }
  void store(float* to, int64_t count) const {
    _mm256_maskstore_ps(to, expanded(first_lanes(count)), value);
  }
  void store_bf16(uint16_t* to) const { store_halves(narrowed_bf16(), to); }
  void store_bf16(uint16_t* to, int64_t count) const { store_halves(narrowed_bf16(), to, count); }
  void store_fp16(uint16_t* to) const { store_halves(narrowed_fp16(), to); }
  void store_fp16(uint16_t* to, int64_t count) const { store_halves(narrowed_fp16(), to, count); }
  void store_packed(float* to, LaneBits bits) const {
    // A byte of ones for each lane picks the lane's number out of 0, 1, ... 7.
    const uint64_t bytes = _pdep_u64(bits, 0x0101010101010101u) * 0xff;
    const uint64_t numbers = _pext_u64(0x0706050403020100u, bytes);
    const __m256i order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(numbers)));
    _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(value, order));
  }

  Floats operator+(Floats b) const { return {_mm256_add_ps(value, b.value)}; }
  Floats operator-(Floats b) const { return {_mm256_sub_ps(value, b.value)}; }
  Floats operator*(Floats b) const { return {_mm256_mul_ps(value, b.value)}; }
  Floats operator/(Floats b) const { return {_mm256_div_ps(value, b.value)}; }
  Floats multiply_add(Floats b, Floats c) const {
    return {_mm256_fmadd_ps(value, b.value, c.value)};
  }
  void add_product(Floats a, Floats b) { value = _mm256_fmadd_ps(a.value, b.value, value); }
  static Floats product_rest(Floats a, Floats b, Floats rounded) {
    return {_mm256_fmsub_ps(a.value, b.value, rounded.value)};
  }
  Floats min(Floats b) const { return {_mm256_min_ps(value, b.value)}; }
  Floats max(Floats b) const { return {_mm256_max_ps(value, b.value)}; }
  Floats magnitude() const { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), value)}; }
  Floats with_sign_of(Floats b) const {
    return {_mm256_or_ps(magnitude().value, _mm256_and_ps(_mm256_set1_ps(-0.0f), b.value))};
  }

  LaneBits greater(Floats b) const { return bits(_mm256_cmp_ps(value, b.value, _CMP_GT_OQ)); }
  LaneBits at_least(Floats b) const { return bits(_mm256_cmp_ps(value, b.value, _CMP_GE_OQ)); }
  LaneBits equal(Floats b) const { return bits(_mm256_cmp_ps(value, b.value, _CMP_EQ_OQ)); }
  LaneBits nan() const { return bits(_mm256_cmp_ps(value, value, _CMP_UNORD_Q)); }
  Floats where(LaneBits bits, Floats b) const {
    return {_mm256_blendv_ps(b.value, value, _mm256_castsi256_ps(expanded(bits)))};
  }
  void add_where(Floats x, Floats low, Floats weight) {
    const __m256 mask = _mm256_cmp_ps(x.value, low.value, _CMP_GE_OQ);
    value = _mm256_add_ps(value, _mm256_and_ps(mask, weight.value));
  }

  Floats rounded() const {
    return {_mm256_round_ps(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  Floats scaled(Floats exponent) const {
    // In two steps, since neither the largest nor the subnormal numbers have such a factor.
    const __m256i whole = _mm256_cvtps_epi32(exponent.value);
    const __m256i half = _mm256_srai_epi32(whole, 1);
    return {_mm256_mul_ps(_mm256_mul_ps(value, power_of_two(half)),
                          power_of_two(_mm256_sub_epi32(whole, half)))};
  }
  void split(Floats& fraction, Floats& exponent) const {
    const __m256 tiny = _mm256_cmp_ps(value, _mm256_set1_ps(__FLT_MIN__), _CMP_LT_OQ);
    const __m256 normal =
        _mm256_blendv_ps(value, _mm256_mul_ps(value, _mm256_set1_ps(0x1p24f)), tiny);
    const __m256i bits = _mm256_castps_si256(normal);
    const __m256i three_quarters = _mm256_castps_si256(_mm256_set1_ps(0.75f));
    const __m256i whole = _mm256_srai_epi32(_mm256_sub_epi32(bits, three_quarters), 23);
    fraction.value = _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(whole, 23)));
    exponent.value =
        _mm256_sub_ps(_mm256_cvtepi32_ps(whole), _mm256_and_ps(tiny, _mm256_set1_ps(24.0f)));
  }

  static Floats sums_of(const Floats (&x)[kLanes]) {
    // Of each half of a register by itself; then the halves.
    const __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(x[0].value, x[1].value),
                                      _mm256_hadd_ps(x[2].value, x[3].value));
    const __m256 high = _mm256_hadd_ps(_mm256_hadd_ps(x[4].value, x[5].value),
                                       _mm256_hadd_ps(x[6].value, x[7].value));
    return {_mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20),
                          _mm256_permute2f128_ps(low, high, 0x31))};
  }
  static void transpose(Floats (&x)[kLanes]) {
    __m256 t[kLanes];
    for (int i = 0; i < 8; i += 4) {
      const __m256 a = _mm256_unpacklo_ps(x[i].value, x[i + 1].value);
      const __m256 b = _mm256_unpackhi_ps(x[i].value, x[i + 1].value);
      const __m256 c = _mm256_unpacklo_ps(x[i + 2].value, x[i + 3].value);
      const __m256 d = _mm256_unpackhi_ps(x[i + 2].value, x[i + 3].value);
      t[i] = _mm256_shuffle_ps(a, c, 0x44);
      t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
      t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
      t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    for (int j = 0; j < 4; ++j) {
      x[j].value = _mm256_permute2f128_ps(t[j], t[4 + j], 0x20);
      x[4 + j].value = _mm256_permute2f128_ps(t[j], t[4 + j], 0x31);
    }
  }

  float sum() const {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
  }
  float least() const {
    return fold([](float a, float b) { return a < b ? a : b; });
  }
  float greatest() const {
    return fold([](float a, float b) { return a > b ? a : b; });
  }

 private:
  static LaneBits bits(__m256 mask) { return static_cast<LaneBits>(_mm256_movemask_ps(mask)); }
  static __m256i expanded(LaneBits bits) {
    const __m256i one_each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
    return _mm256_cmpeq_epi32(_mm256_and_si256(all, one_each), one_each);
  }
  static __m256 power_of_two(__m256i exponent) {
    const __m256i biased = _mm256_add_epi32(exponent, _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
  template <typename Operation>
  float fold(Operation operation) const {
    float lanes[kLanes];
    store(lanes);
    float result = lanes[0];
    for (int64_t i = 1; i < kLanes; ++i) result = operation(result, lanes[i]);
    return result;
  }

  // There are no masks for 16 bits here: parts of a register go through memory of their own.
  static __m128i load_halves(const uint16_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static __m128i load_halves(const uint16_t* from, int64_t count) {
    uint16_t whole[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) whole[i] = from[i];
    return load_halves(whole);
  }
  static void store_halves(__m128i halves, uint16_t* to) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
  }
  static void store_halves(__m128i halves, uint16_t* to, int64_t count) {
    uint16_t whole[kLanes];
    store_halves(halves, whole);
    for (int64_t i = 0; i < count; ++i) to[i] = whole[i];
  }

  static Floats widened_bf16(__m128i half) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
  }
  __m128i narrowed_bf16() const {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounding = _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_add_epi32(bits, rounding);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40 << 16));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i chosen = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    // Packing works on each half of the register by itself.
    const __m256i packed = _mm256_packus_epi32(chosen, chosen);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
  }
  __m128i narrowed_fp16() const {
    return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};

struct Doubles {
  __m256d low, high;

  static Doubles zero() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
  static Doubles all(double x) { return {_mm256_set1_pd(x), _mm256_set1_pd(x)}; }
  static Doubles of(Floats x) {
    return {_mm256_cvtps_pd(_mm256_castps256_ps128(x.value)),
            _mm256_cvtps_pd(_mm256_extractf128_ps(x.value, 1))};
  }
  Floats rounded() const { return {_mm256_set_m128(_mm256_cvtpd_ps(high), _mm256_cvtpd_ps(low))}; }
  Doubles operator+(Doubles b) const {
    return {_mm256_add_pd(low, b.low), _mm256_add_pd(high, b.high)};
  }
  Doubles operator-(Doubles b) const {
    return {_mm256_sub_pd(low, b.low), _mm256_sub_pd(high, b.high)};
  }
  Doubles operator*(Doubles b) const {
    return {_mm256_mul_pd(low, b.low), _mm256_mul_pd(high, b.high)};
  }
  void add_square(Doubles x) {
    low = _mm256_fmadd_pd(x.low, x.low, low);
    high = _mm256_fmadd_pd(x.high, x.high, high);
  }
  Doubles where(LaneBits bits) const {
    return {_mm256_and_pd(low, expanded(bits)), _mm256_and_pd(high, expanded(bits >> 4))};
  }
  double sum() const {
    const __m256d all = _mm256_add_pd(low, high);
    const __m128d half = _mm_add_pd(_mm256_castpd256_pd128(all), _mm256_extractf128_pd(all, 1));
    return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
  }

 private:
  static __m256d expanded(LaneBits bits) {
    const __m256i one_each = _mm256_setr_epi64x(1, 2, 4, 8);
    const __m256i all = _mm256_set1_epi64x(static_cast<int64_t>(bits));
    return _mm256_castsi256_pd(_mm256_cmpeq_epi64(_mm256_and_si256(all, one_each), one_each));
  }
};

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
