// SPDX-License-Identifier: Apache-2.0
//
// Floats of one lane, in plain C++: the oracle of the others. Included by floats-inl.h; what
// members promise is said in floats_512-inl.h.
#pragma once

#include <cstdint>

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

struct Floats {
  static constexpr int64_t kLanes = 1;
  float value;

  static Floats zero() { return {0.0f}; }
  static Floats all(float x) { return {x}; }

  static Floats load(const float* from) { return {*from}; }
  static Floats load(const float* from, int64_t count, float rest = 0) {
    return {count > 0 ? *from : rest};
  }
  static Floats load_bf16(const uint16_t* from) { return {widen_bf16(*from)}; }
  static Floats load_bf16(const uint16_t* from, int64_t count) {
    return {count > 0 ? widen_bf16(*from) : 0.0f};
  }
  static Floats load_fp16(const uint16_t* from) { return {widen_fp16(*from)}; }
  static Floats load_fp16(const uint16_t* from, int64_t count) {
    return {count > 0 ? widen_fp16(*from) : 0.0f};
  }

  void store(float* to) const { *to = value; }
  void store(float* to, int64_t count) const {
    if (count > 0) *to = value;
  }
  void store_bf16(uint16_t* to) const { *to = narrow_bf16(value); }
  void store_bf16(uint16_t* to, int64_t count) const {
    if (count > 0) *to = narrow_bf16(value);
  }
  void store_fp16(uint16_t* to) const { *to = narrow_fp16(value); }
  void store_fp16(uint16_t* to, int64_t count) const {
    if (count > 0) *to = narrow_fp16(value);
  }
  void store_packed(float* to, LaneBits) const { *to = value; }

  Floats operator+(Floats b) const { return {value + b.value}; }
  Floats operator-(Floats b) const { return {value - b.value}; }
  Floats operator*(Floats b) const { return {value * b.value}; }
  Floats operator/(Floats b) const { return {value / b.value}; }
  Floats multiply_add(Floats b, Floats c) const { return {value * b.value + c.value}; }
  void add_product(Floats a, Floats b) { value += a.value * b.value; }
  static Floats product_rest(Floats a, Floats b, Floats rounded) {
    // float64 holds the product of two float32 exactly.
    const double product = double{a.value} * double{b.value};
    return {static_cast<float>(product - double{rounded.value})};
  }
  Floats min(Floats b) const { return {value < b.value ? value : b.value}; }
  Floats max(Floats b) const { return {value > b.value ? value : b.value}; }
  Floats magnitude() const { return {__builtin_fabsf(value)}; }
  Floats with_sign_of(Floats b) const { return {__builtin_copysignf(value, b.value)}; }

  LaneBits greater(Floats b) const { return value > b.value; }
  LaneBits at_least(Floats b) const { return value >= b.value; }
  LaneBits equal(Floats b) const { return value == b.value; }
  LaneBits nan() const { return value != value; }
  Floats where(LaneBits bits, Floats b) const { return (bits & 1) != 0 ? *this : b; }
  void add_where(Floats x, Floats low, Floats weight) {
    value += x.value >= low.value ? weight.value : 0.0f;
  }

  Floats rounded() const {
    // Adding 1.5 * 2^23 leaves no bits for a fraction.
    constexpr float kShift = 12582912.0f;
    const volatile float shifted = value + kShift;
    return {shifted - kShift};
  }
  Floats scaled(Floats exponent) const {
    // In two steps, since neither the largest nor the subnormal numbers have such a factor.
    const int32_t whole = exponent.nan() ? 0 : static_cast<int32_t>(exponent.value);
    const int32_t half = whole >> 1;
    return {value * power_of_two(half) * power_of_two(whole - half)};
  }
  void split(Floats& fraction, Floats& exponent) const {
    const bool tiny = value < __FLT_MIN__;
    const float normal = tiny ? value * 0x1p24f : value;
    uint32_t bits;
    __builtin_memcpy(&bits, &normal, sizeof(bits));
    constexpr uint32_t kThreeQuarters = 0x3f400000;
    const int32_t whole = static_cast<int32_t>(bits - kThreeQuarters) >> 23;
    bits -= static_cast<uint32_t>(whole) << 23;
    __builtin_memcpy(&fraction.value, &bits, sizeof(bits));
    exponent.value = static_cast<float>(whole) - (tiny ? 24.0f : 0.0f);
  }

  static Floats sums_of(const Floats (&x)[kLanes]) { return x[0]; }
  static void transpose(Floats (&)[kLanes]) {}

  float sum() const { return value; }
  float least() const { return value; }
  float greatest() const { return value; }

 private:
  static float power_of_two(int32_t exponent) {
    const uint32_t bits = static_cast<uint32_t>(exponent + 127) << 23;
    float factor;
    __builtin_memcpy(&factor, &bits, sizeof(factor));
    return factor;
  }
};

struct Doubles {
  double value;

  static Doubles zero() { return {0.0}; }
  static Doubles all(double x) { return {x}; }
  static Doubles of(Floats x) { return {double{x.value}}; }
  Floats rounded() const { return {static_cast<float>(value)}; }
  Doubles operator+(Doubles b) const { return {value + b.value}; }
  Doubles operator-(Doubles b) const { return {value - b.value}; }
  Doubles operator*(Doubles b) const { return {value * b.value}; }
  void add_square(Doubles x) { value += x.value * x.value; }
  Doubles where(LaneBits bits) const { return {(bits & 1) != 0 ? value : 0.0}; }
  double sum() const { return value; }
};

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
