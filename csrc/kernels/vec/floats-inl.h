// SPDX-License-Identifier: Apache-2.0
//
// The widest register as float32 lanes, and half-precision values widened into it.
//
// Compiled once per instruction set, inside that set's namespace; see bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#if ANVIL_VECTOR_BYTES > 8
#include <immintrin.h>
#endif

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// One value: the tail of a row, and all of it in the scalar set.
inline float widen_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  __builtin_memcpy(&value, &wide, sizeof(value));
  return value;
}

inline float widen_fp16(uint16_t bits) {
  _Float16 half;
  __builtin_memcpy(&half, &bits, sizeof(half));
  return static_cast<float>(half);
}

#if ANVIL_VECTOR_BYTES == 64

struct Floats {
  static constexpr int kLanes = 16;
  __m512 value;
  static Floats zero() { return {_mm512_setzero_ps()}; }
  static Floats load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static Floats load_bf16(const uint16_t* from) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
  }
  static Floats load_fp16(const uint16_t* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
  }
  void add_product(Floats a, Floats b) { value = _mm512_fmadd_ps(a.value, b.value, value); }
  float sum() const { return _mm512_reduce_add_ps(value); }
};

#elif ANVIL_VECTOR_BYTES == 32

struct Floats {
  static constexpr int kLanes = 8;
  __m256 value;
  static Floats zero() { return {_mm256_setzero_ps()}; }
  static Floats load(const float* from) { return {_mm256_loadu_ps(from)}; }
  static Floats load_bf16(const uint16_t* from) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
  }
  static Floats load_fp16(const uint16_t* from) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
  }
  void add_product(Floats a, Floats b) { value = _mm256_fmadd_ps(a.value, b.value, value); }
  float sum() const {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
  }
};

#else

struct Floats {
  static constexpr int kLanes = 1;
  float value;
  static Floats zero() { return {0.0f}; }
  static Floats load(const float* from) { return {*from}; }
  static Floats load_bf16(const uint16_t* from) { return {widen_bf16(*from)}; }
  static Floats load_fp16(const uint16_t* from) { return {widen_fp16(*from)}; }
  void add_product(Floats a, Floats b) { value += a.value * b.value; }
  float sum() const { return value; }
};

#endif

// How weights of one type are read.
struct Bf16 {
  static Floats load(const uint16_t* from) { return Floats::load_bf16(from); }
  static float widen(uint16_t bits) { return widen_bf16(bits); }
};

struct Fp16 {
  static Floats load(const uint16_t* from) { return Floats::load_fp16(from); }
  static float widen(uint16_t bits) { return widen_fp16(bits); }
};

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
