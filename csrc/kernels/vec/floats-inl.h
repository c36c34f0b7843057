// SPDX-License-Identifier: Apache-2.0
//
// The widest register as float32 lanes: `Floats`, one type per register width with the same
// members. Comparisons with NaN are false, so that NaN is in no range of values.
//
// Compiled once per instruction set, inside that set's namespace; see bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Lanes that satisfy a condition, one bit each.
using LaneBits = uint32_t;

// The first `count` lanes.
inline LaneBits first_lanes(int64_t count) { return (LaneBits{1} << count) - 1; }

// One value of half precision, as its bits.
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

// To the nearest, ties to even; NaN stays NaN.
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

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE

#if ANVIL_VECTOR_BYTES == 64
#include "vec/floats_512-inl.h"
#elif ANVIL_VECTOR_BYTES == 32
#include "vec/floats_256-inl.h"
#else
#include "vec/floats_scalar-inl.h"
#endif
