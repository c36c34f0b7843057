// SPDX-License-Identifier: Apache-2.0
//
// Elements of one byte that only KV caches have: float8 and int8, read into Floats exactly and
// written from them. Numbers beyond the largest become the largest with their sign, infinity too:
// a cache that was written with too small a scale has no infinities.
//
// Compiled once per instruction set, inside that set's namespace; see bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "cache_type.h"
#include "vec/elements-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// What tells the two formats of float8 apart. Their NaN is written as 0x7f, with a sign.
struct E4m3Format {
  static constexpr int kMantissaBits = 3, kBias = 7;
  static constexpr float kGreatest = 448, kLeastNormal = 0x1p-6f;
};
struct E5m2Format {
  static constexpr int kMantissaBits = 2, kBias = 15;
  static constexpr float kGreatest = 57344, kLeastNormal = 0x1p-14f;
};

// Numbers that follow from these, and that rounding a float32 needs.
template <typename Format>
struct Float8Rounding {
  static constexpr int kShift = 23 - Format::kMantissaBits;  // bits of a mantissa that go
  // Added to the bits of a float32, with the lowest bit that stays: rounds to the nearest, ties to
  // even, and changes the bias.
  static constexpr int32_t kRounding =
      (1 << (kShift - 1)) - 1 - (int32_t{127 - Format::kBias} << 23);
  // A sum with it has steps of the subnormal numbers, so that its last bits count them.
  static constexpr float kCounter = Format::kLeastNormal * static_cast<float>(1 << kShift);
};

inline float widen_e4m3(uint8_t bits) {
  if ((bits & 0x7f) == 0x7f) return (bits & 0x80) != 0 ? -__builtin_nanf("") : __builtin_nanf("");
  // As a half precision number, whose bias is larger by 8, it is too small by 2^8.
  return widen_fp16(static_cast<uint16_t>((bits & 0x80) << 8 | (bits & 0x7f) << 7)) * 0x1p8f;
}

inline float widen_e5m2(uint8_t bits) {
  return widen_fp16(static_cast<uint16_t>(bits << 8));  // the upper half of half precision
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE

#if ANVIL_VECTOR_BYTES == 64
#include "vec/cache_elements_512-inl.h"
#elif ANVIL_VECTOR_BYTES == 32
#include "vec/cache_elements_256-inl.h"
#else
#include "vec/cache_elements_scalar-inl.h"
#endif

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

struct E4m3 {
  using Stored = uint8_t;
  static constexpr CacheType kCacheType = CacheType::kE4m3;
  static Floats load(const uint8_t* from, Whole = {}) { return e4m3_floats(load_bytes(from)); }
  static Floats load(const uint8_t* from, First part) {
    return e4m3_floats(load_bytes(from, part.count));
  }
  static void store(Floats x, uint8_t* to, Whole = {}) {
    store_bytes(float8_bytes<E4m3Format>(x), to);
  }
  static void store(Floats x, uint8_t* to, First part) {
    store_bytes(float8_bytes<E4m3Format>(x), to, part.count);
  }
#if ANVIL_VECTOR_BYTES == 64
  static __m512i widen_to_bf16(const uint8_t* from) { return bf16_of_e4m3(load_32_bytes(from)); }
  static __m512i widen_to_bf16(const uint8_t* from, int64_t count) {
    return bf16_of_e4m3(load_32_bytes(from, count));
  }
#endif
  static float widen(uint8_t bits) { return widen_e4m3(bits); }
};

struct E5m2 {
  using Stored = uint8_t;
  static constexpr CacheType kCacheType = CacheType::kE5m2;
  static Floats load(const uint8_t* from, Whole = {}) { return e5m2_floats(load_bytes(from)); }
  static Floats load(const uint8_t* from, First part) {
    return e5m2_floats(load_bytes(from, part.count));
  }
  static void store(Floats x, uint8_t* to, Whole = {}) {
    store_bytes(float8_bytes<E5m2Format>(x), to);
  }
  static void store(Floats x, uint8_t* to, First part) {
    store_bytes(float8_bytes<E5m2Format>(x), to, part.count);
  }
#if ANVIL_VECTOR_BYTES == 64
  static __m512i widen_to_bf16(const uint8_t* from) { return bf16_of_e5m2(load_32_bytes(from)); }
  static __m512i widen_to_bf16(const uint8_t* from, int64_t count) {
    return bf16_of_e5m2(load_32_bytes(from, count));
  }
#endif
  static float widen(uint8_t bits) { return widen_e5m2(bits); }
};

// To the nearest whole number, ties to even, from -128 to 127; NaN, which it has not, becomes 0.
struct Int8 {
  using Stored = int8_t;
  static constexpr CacheType kCacheType = CacheType::kInt8;
  static Floats load(const int8_t* from, Whole = {}) { return int8_floats(load_bytes(from)); }
  static Floats load(const int8_t* from, First part) {
    return int8_floats(load_bytes(from, part.count));
  }
  static void store(Floats x, int8_t* to, Whole = {}) { store_bytes(int8_bytes(x), to); }
  static void store(Floats x, int8_t* to, First part) {
    store_bytes(int8_bytes(x), to, part.count);
  }
#if ANVIL_VECTOR_BYTES == 64
  static __m512i widen_to_bf16(const int8_t* from) {
    return bf16_of_int8(load_bytes(from), load_bytes(from + 16));
  }
  static __m512i widen_to_bf16(const int8_t* from, int64_t count) {
    const __m256i bytes = load_32_bytes(from, count);
    return bf16_of_int8(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
  }
#endif
  static float widen(int8_t value) { return value; }
};

// Calls body(Float32{}), .., body(Int8{}): once per call of a kernel, outside its loops.
template <typename Body>
inline void with_cache_element(CacheType type, const Body& body) {
  switch (type) {
    case CacheType::kFloat32:
      return body(Float32{});
    case CacheType::kBf16:
      return body(Bf16{});
    case CacheType::kFp16:
      return body(Fp16{});
    case CacheType::kE4m3:
      return body(E4m3{});
    case CacheType::kE5m2:
      return body(E5m2{});
    case CacheType::kInt8:
      return body(Int8{});
  }
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
