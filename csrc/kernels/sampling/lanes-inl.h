// SPDX-License-Identifier: Apache-2.0
//
// The widest register as float32 lanes that are compared and picked from. Comparisons with NaN are
// false, so that NaN is in no range of values.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#if ANVIL_VECTOR_BYTES > 8
#include <immintrin.h>
#endif

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Lanes that satisfy a condition, one bit each.
using LaneBits = uint32_t;

#if ANVIL_VECTOR_BYTES == 64

struct Lanes {
  static constexpr int64_t kCount = 16;
  __m512 value;
  static Lanes all(float x) { return {_mm512_set1_ps(x)}; }
  static Lanes load(const float* from) { return {_mm512_loadu_ps(from)}; }
  // The first `count` lanes, the others `rest`.
  static Lanes load(const float* from, int64_t count, float rest) {
    return {_mm512_mask_loadu_ps(_mm512_set1_ps(rest), first(count), from)};
  }
  void store(float* to) const { _mm512_storeu_ps(to, value); }
  void store(float* to, int64_t count) const { _mm512_mask_storeu_ps(to, first(count), value); }
  // Writes the lanes of `bits` one behind the other; writes a whole register.
  void store_packed(float* to, LaneBits bits) const {
    _mm512_storeu_ps(to, _mm512_maskz_compress_ps(static_cast<__mmask16>(bits), value));
  }
  Lanes operator+(Lanes b) const { return {_mm512_add_ps(value, b.value)}; }
  Lanes operator-(Lanes b) const { return {_mm512_sub_ps(value, b.value)}; }
  LaneBits greater(Lanes b) const { return _mm512_cmp_ps_mask(value, b.value, _CMP_GT_OQ); }
  LaneBits at_least(Lanes b) const { return _mm512_cmp_ps_mask(value, b.value, _CMP_GE_OQ); }
  LaneBits equal(Lanes b) const { return _mm512_cmp_ps_mask(value, b.value, _CMP_EQ_OQ); }
  LaneBits nan() const { return _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q); }
  // Adds `weight` in the lanes where x >= low.
  void add_where(Lanes x, Lanes low, Lanes weight) {
    const __mmask16 bits = _mm512_cmp_ps_mask(x.value, low.value, _CMP_GE_OQ);
    value = _mm512_mask_add_ps(value, bits, value, weight.value);
  }
  // The lanes of `bits`, the others from b.
  Lanes where(LaneBits bits, Lanes b) const {
    return {_mm512_mask_mov_ps(b.value, static_cast<__mmask16>(bits), value)};
  }
  // Where either is NaN, b.
  Lanes min(Lanes b) const { return {_mm512_min_ps(value, b.value)}; }
  Lanes max(Lanes b) const { return {_mm512_max_ps(value, b.value)}; }
  float sum() const { return _mm512_reduce_add_ps(value); }
  float least() const { return _mm512_reduce_min_ps(value); }
  float greatest() const { return _mm512_reduce_max_ps(value); }
  Lanes multiply_add(Lanes b, Lanes c) const { return {_mm512_fmadd_ps(value, b.value, c.value)}; }
  Lanes rounded() const {
    return {_mm512_roundscale_ps(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  // value * 2^exponent, for whole exponents from -126 to 127.
  Lanes scaled(Lanes exponent) const { return {_mm512_scalef_ps(value, exponent.value)}; }

 private:
  static __mmask16 first(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }
};

#elif ANVIL_VECTOR_BYTES == 32

struct Lanes {
  static constexpr int64_t kCount = 8;
  __m256 value;
  static Lanes all(float x) { return {_mm256_set1_ps(x)}; }
  static Lanes load(const float* from) { return {_mm256_loadu_ps(from)}; }
  static Lanes load(const float* from, int64_t count, float rest) {
    const __m256i mask = expanded((1u << count) - 1);
    return {_mm256_blendv_ps(_mm256_set1_ps(rest), _mm256_maskload_ps(from, mask),
                             _mm256_castsi256_ps(mask))};
  }
  void store(float* to) const { _mm256_storeu_ps(to, value); }
  void store(float* to, int64_t count) const {
    _mm256_maskstore_ps(to, expanded((1u << count) - 1), value);
  }
  void store_packed(float* to, LaneBits bits) const {
    // A byte of ones for each lane picks the lane's number out of 0, 1, ... 7.
    const uint64_t bytes = _pdep_u64(bits, 0x0101010101010101u) * 0xff;
    const uint64_t numbers = _pext_u64(0x0706050403020100u, bytes);
    const __m256i order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(numbers)));
    _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(value, order));
  }
  Lanes operator+(Lanes b) const { return {_mm256_add_ps(value, b.value)}; }
  Lanes operator-(Lanes b) const { return {_mm256_sub_ps(value, b.value)}; }
  LaneBits greater(Lanes b) const { return bits(_mm256_cmp_ps(value, b.value, _CMP_GT_OQ)); }
  LaneBits at_least(Lanes b) const { return bits(_mm256_cmp_ps(value, b.value, _CMP_GE_OQ)); }
  LaneBits equal(Lanes b) const { return bits(_mm256_cmp_ps(value, b.value, _CMP_EQ_OQ)); }
  LaneBits nan() const { return bits(_mm256_cmp_ps(value, value, _CMP_UNORD_Q)); }
  void add_where(Lanes x, Lanes low, Lanes weight) {
    const __m256 mask = _mm256_cmp_ps(x.value, low.value, _CMP_GE_OQ);
    value = _mm256_add_ps(value, _mm256_and_ps(mask, weight.value));
  }
  Lanes where(LaneBits bits, Lanes b) const {
    return {_mm256_blendv_ps(b.value, value, _mm256_castsi256_ps(expanded(bits)))};
  }
  Lanes min(Lanes b) const { return {_mm256_min_ps(value, b.value)}; }
  Lanes max(Lanes b) const { return {_mm256_max_ps(value, b.value)}; }
  float sum() const {
    return fold([](float a, float b) { return a + b; });
  }
  float least() const {
    return fold([](float a, float b) { return a < b ? a : b; });
  }
  float greatest() const {
    return fold([](float a, float b) { return a > b ? a : b; });
  }
  Lanes multiply_add(Lanes b, Lanes c) const { return {_mm256_fmadd_ps(value, b.value, c.value)}; }
  Lanes rounded() const {
    return {_mm256_round_ps(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  Lanes scaled(Lanes exponent) const {
    const __m256i biased =
        _mm256_add_epi32(_mm256_cvtps_epi32(exponent.value), _mm256_set1_epi32(127));
    return {_mm256_mul_ps(value, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)))};
  }

 private:
  static LaneBits bits(__m256 mask) { return static_cast<LaneBits>(_mm256_movemask_ps(mask)); }
  static __m256i expanded(LaneBits bits) {
    const __m256i one_each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
    return _mm256_cmpeq_epi32(_mm256_and_si256(all, one_each), one_each);
  }
  template <typename Operation>
  float fold(Operation operation) const {
    float lanes[kCount];
    store(lanes);
    float result = lanes[0];
    for (int64_t i = 1; i < kCount; ++i) result = operation(result, lanes[i]);
    return result;
  }
};

#else

struct Lanes {
  static constexpr int64_t kCount = 1;
  float value;
  static Lanes all(float x) { return {x}; }
  static Lanes load(const float* from) { return {*from}; }
  static Lanes load(const float* from, int64_t count, float rest) {
    return {count > 0 ? *from : rest};
  }
  void store(float* to) const { *to = value; }
  void store(float* to, int64_t count) const {
    if (count > 0) *to = value;
  }
  void store_packed(float* to, LaneBits) const { *to = value; }
  Lanes operator+(Lanes b) const { return {value + b.value}; }
  Lanes operator-(Lanes b) const { return {value - b.value}; }
  LaneBits greater(Lanes b) const { return value > b.value; }
  LaneBits at_least(Lanes b) const { return value >= b.value; }
  LaneBits equal(Lanes b) const { return value == b.value; }
  LaneBits nan() const { return value != value; }
  void add_where(Lanes x, Lanes low, Lanes weight) {
    value += x.value >= low.value ? weight.value : 0.0f;
  }
  Lanes where(LaneBits bits, Lanes b) const { return bits ? *this : b; }
  Lanes min(Lanes b) const { return {value < b.value ? value : b.value}; }
  Lanes max(Lanes b) const { return {value > b.value ? value : b.value}; }
  float sum() const { return value; }
  float least() const { return value; }
  float greatest() const { return value; }
  Lanes multiply_add(Lanes b, Lanes c) const { return {value * b.value + c.value}; }
  Lanes rounded() const {
    // Adding 1.5 * 2^23 leaves no bits for a fraction.
    constexpr float kShift = 12582912.0f;
    const volatile float shifted = value + kShift;
    return {shifted - kShift};
  }
  Lanes scaled(Lanes exponent) const {
    const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(exponent.value) + 127) << 23;
    float factor;
    __builtin_memcpy(&factor, &bits, sizeof(factor));
    return {value * factor};
  }
};

#endif

// exp(x) for x <= 0, within 2 units in the last place; 0 below -87, where results would be
// subnormal. NaN gives NaN.
inline Lanes exp_of_negative(Lanes x) {
  const Lanes low = Lanes::all(-87.0f);
  const LaneBits kept = ~low.greater(x);
  const Lanes bounded = low.max(x);
  const Lanes exponent = bounded.multiply_add(Lanes::all(1.44269504f), Lanes::all(0.0f)).rounded();
  // x - exponent * ln 2, with ln 2 in two parts, the first of which has few bits.
  Lanes rest = exponent.multiply_add(Lanes::all(-0.693359375f), bounded);
  rest = exponent.multiply_add(Lanes::all(2.12194440e-4f), rest);
  // The series of exp: beyond its eighth term nothing is left in float32 for |rest| <= ln 2 / 2.
  Lanes result = Lanes::all(1.0f / 5040);
  constexpr float kFactors[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  for (float factor : kFactors) result = result.multiply_add(rest, Lanes::all(factor));
  return result.scaled(exponent).where(kept, Lanes::all(0.0f));
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
