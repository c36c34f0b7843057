// SPDX-License-Identifier: Apache-2.0
//
// Numbers of the types that a KV cache may have, read and made one at a time, by their definition.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>

#include "cache_type.h"
#include "element_type.h"

namespace anvil::kernels {

inline CacheType as_cache_type(ElementType type) {
  return type == ElementType::kFloat32 ? CacheType::kFloat32
         : type == ElementType::kBf16  ? CacheType::kBf16
                                       : CacheType::kFp16;
}

inline int64_t size_of(CacheType type) {
  switch (type) {
    case CacheType::kFloat32:
      return 4;
    case CacheType::kBf16:
    case CacheType::kFp16:
      return 2;
    default:
      return 1;
  }
}

// A sign, `exponent` bits and `mantissa` bits; NaN and infinity are not told apart.
inline double small_float(uint32_t bits, int exponent, int mantissa, bool has_infinity) {
  const int bias = (1 << (exponent - 1)) - 1;
  const int fraction = static_cast<int>(bits & ((1u << mantissa) - 1));
  const int power = static_cast<int>(bits >> mantissa & ((1u << exponent) - 1));
  const double sign = bits >> (exponent + mantissa) & 1 ? -1 : 1;
  const bool last = power == (1 << exponent) - 1;
  if (last && (has_infinity || fraction == (1 << mantissa) - 1)) return NAN;
  if (power == 0) return sign * std::ldexp(fraction, 1 - bias - mantissa);
  return sign * std::ldexp(fraction + (1 << mantissa), power - bias - mantissa);
}

inline double number_at(CacheType type, const char* data) {
  uint32_t bits = 0;
  std::memcpy(&bits, data, size_of(type));
  switch (type) {
    case CacheType::kFloat32: {
      float value;
      std::memcpy(&value, data, sizeof(value));
      return value;
    }
    case CacheType::kBf16:
      return small_float(bits, 8, 7, true);
    case CacheType::kFp16:
      return small_float(bits, 5, 10, true);
    case CacheType::kE4m3:
      return small_float(bits, 4, 3, false);
    case CacheType::kE5m2:
      return small_float(bits, 5, 2, true);
    case CacheType::kInt8:
      return static_cast<int8_t>(bits);
  }
  return NAN;
}

// Any number of the type that is not large, mostly between 1/4 and 2. int8: all of them.
inline void put_random(CacheType type, std::mt19937& random, char* data) {
  const float value = std::uniform_real_distribution<float>(-1.7f, 1.7f)(random);
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  switch (type) {
    case CacheType::kFloat32:
      break;
    case CacheType::kBf16:
      bits >>= 16;
      break;
    case CacheType::kFp16: {
      const auto half = static_cast<_Float16>(value);
      std::memcpy(&bits, &half, sizeof(half));
      break;
    }
    default:
      do {
        bits = random() & 0xff;
      } while (type != CacheType::kInt8 &&
               !(std::abs(number_at(type, reinterpret_cast<char*>(&bits))) <= 2));
  }
  std::memcpy(data, &bits, size_of(type));
}

// What spoils a result into which it gets: NaN; int8 has none, so its largest number.
inline void put_poison(CacheType type, char* data) {
  std::memset(data, type == CacheType::kInt8 ? 0x7f : 0xff, size_of(type));
}

}  // namespace anvil::kernels
