// SPDX-License-Identifier: Apache-2.0
//
// One element of a byte at a time, in plain C++: the oracle of the others. Included by
// cache_elements-inl.h.
#pragma once

#include <cstdint>

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

inline uint8_t load_bytes(const void* from) { return *static_cast<const uint8_t*>(from); }
inline uint8_t load_bytes(const void* from, int64_t count) {
  return count > 0 ? load_bytes(from) : uint8_t{0};
}
inline void store_bytes(uint8_t byte, void* to) { *static_cast<uint8_t*>(to) = byte; }
inline void store_bytes(uint8_t byte, void* to, int64_t count) {
  if (count > 0) store_bytes(byte, to);
}

inline Floats e4m3_floats(uint8_t byte) { return {widen_e4m3(byte)}; }
inline Floats e5m2_floats(uint8_t byte) { return {widen_e5m2(byte)}; }
inline Floats int8_floats(uint8_t byte) { return {static_cast<float>(static_cast<int8_t>(byte))}; }

template <typename Format>
inline uint8_t float8_bytes(Floats x) {
  using Rounding = Float8Rounding<Format>;
  const auto bits_of = [](float value) {
    int32_t bits;
    __builtin_memcpy(&bits, &value, sizeof(bits));
    return bits;
  };
  const int32_t sign = bits_of(x.value) < 0 ? 0x80 : 0;
  if (x.nan()) return static_cast<uint8_t>(sign | 0x7f);
  const float magnitude = x.magnitude().min(Floats::all(Format::kGreatest)).value;
  if (magnitude < Format::kLeastNormal) {
    const int32_t counted = bits_of(magnitude + Rounding::kCounter) - bits_of(Rounding::kCounter);
    return static_cast<uint8_t>(sign | counted);
  }
  const int32_t bits = bits_of(magnitude);
  const int32_t rounded = bits + (bits >> Rounding::kShift & 1) + Rounding::kRounding;
  return static_cast<uint8_t>(sign | rounded >> Rounding::kShift);
}

inline uint8_t int8_bytes(Floats x) {
  if (x.nan()) return 0;
  const Floats clamped = x.max(Floats::all(-128.0f)).min(Floats::all(127.0f));
  return static_cast<uint8_t>(static_cast<int8_t>(clamped.rounded().value));
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
