// SPDX-License-Identifier: Apache-2.0
//
// Functions of float32 lanes, the same polynomials for every instruction set. Where a result is
// subnormal its error may be one of the smallest numbers more than is stated. NaN gives NaN.
//
// The coefficients are minimax fits of the relative error of the function named beside them.
//
// Compiled once per instruction set, inside that set's namespace; see bytes-inl.h for what that
// forbids.
#pragma once

#include "vec/floats-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// c[0] + c[1] x + c[2] x^2 + ...
template <int N>
inline Floats polynomial(Floats x, const float (&c)[N]) {
  Floats result = Floats::all(c[N - 1]);
  for (int i = N - 2; i >= 0; --i) result = result.multiply_add(x, Floats::all(c[i]));
  return result;
}

// Within 1 unit in the last place. Results too large for float32 are infinite.
inline Floats exp(Floats x) {
  // (exp(r) - 1 - r) / r^2 for |r| <= ln 2 / 2
  constexpr float kCurve[] = {0.49999994f, 0.166665196f, 0.0416683927f, 0.00836878084f,
                              0.00138144672f};
  // Beyond these bounds results are 0 and infinity. NaN stays.
  const Floats bounded = Floats::all(89.0f).min(Floats::all(-105.0f).max(x));
  const Floats exponent = (bounded * Floats::all(1.44269504f)).rounded();
  // x - exponent * ln 2, with ln 2 in two parts, the first of which has few bits.
  Floats r = exponent.multiply_add(Floats::all(-0.693359375f), bounded);
  r = exponent.multiply_add(Floats::all(2.12194440e-4f), r);
  const Floats curved = (r * r).multiply_add(polynomial(r, kCurve), r);
  return (curved + Floats::all(1.0f)).scaled(exponent);
}

// Within 1 unit in the last place. -inf of 0, NaN of what is below.
inline Floats log(Floats x) {
  // (2 atanh(s) / s - 2) / s^2 by s^2, for |s| <= 1/5
  constexpr float kCurve[] = {0.666666627f, 0.400008678f, 0.285067946f, 0.241034806f};
  Floats fraction, exponent;
  x.split(fraction, exponent);
  // log(1 + f) = 2 atanh(s) for s = f / (2 + f), written so that f itself is its largest part.
  const Floats f = fraction - Floats::all(1.0f);
  const Floats s = f / (f + Floats::all(2.0f));
  const Floats square = s * s;
  const Floats half = f * f * Floats::all(0.5f);
  const Floats inner = half + square * polynomial(square, kCurve);
  const Floats low = exponent.multiply_add(Floats::all(-2.12194440e-4f), s * inner);
  const Floats result = exponent.multiply_add(Floats::all(0.693359375f), f - (half - low));
  const Floats zero = Floats::zero(), infinity = Floats::all(__builtin_inff());
  // What is infinite or NaN is its own logarithm; this also turns what is below 0 into NaN.
  const Floats positive = result.where(infinity.greater(x), x);
  const Floats defined = positive.where(x.greater(zero) | x.nan(), Floats::all(__builtin_nanf("")));
  return (zero - infinity).where(x.equal(zero), defined);
}

// Within 2 units in the last place.
inline Floats tanh(Floats x) {
  // (tanh(x) / x - 1) / x^2 by x^2, for |x| <= 5/8
  constexpr float kCurve[] = {-0.333332807f, 0.133314416f, -0.0537397154f, 0.0206390861f,
                              -0.00570498686f};
  const Floats size = x.magnitude(), one = Floats::all(1.0f);
  const Floats square = x * x;
  const Floats small = (x * square).multiply_add(polynomial(square, kCurve), x);
  const Floats large = one - Floats::all(2.0f) / (exp(size + size) + one);
  return large.where(size.greater(Floats::all(0.625f)), small).with_sign_of(x);
}

// 1 / (1 + exp(-x)), within 2 units in the last place.
inline Floats sigmoid(Floats x) {
  const Floats one = Floats::all(1.0f);
  const Floats least = exp(Floats::zero() - x.magnitude());
  return one.where(x.at_least(Floats::zero()), least) / (one + least);
}

// erf(x) / x - 1 for |x| <= 1.
inline Floats erf_curve(Floats x) {
  constexpr float kCurve[] = {0.128379166f,   -0.37612626f,     0.112835854f,   -0.0268538129f,
                              0.00518832775f, -0.000801019371f, 7.85386146e-05f};
  return polynomial(x * x, kCurve);
}

// erfc(x) exp(x^2) for x from 1 to 10.2; towards infinity it stays finite.
inline Floats erfc_scaled(Floats x) {
  // by t = 2 / (2 + x), over t
  constexpr float kCurve[] = {0.282084733f, 0.282372504f,    0.243547484f,
                              0.198097736f, -0.00491526304f, 0.221716329f,
                              -0.40448162f, 0.220096126f,    -0.0383055285f};
  const Floats t = Floats::all(2.0f) / (x + Floats::all(2.0f));
  return t * polynomial(t, kCurve);
}

// exp(factor * x^2) for a factor that is a power of two, within 2 units in the last place: the
// rounding of x^2 alone would cost 100.
inline Floats exp_of_square(Floats x, float factor) {
  const Floats square = x * x;
  const Floats rest = Floats::product_rest(x, x, square) * Floats::all(factor);
  const Floats result = exp(square * Floats::all(factor));
  // Where the square is infinite the rest is NaN, and where it is large it does not matter.
  const Floats mended = result.multiply_add(rest, result);
  return mended.where(Floats::all(1e3f).greater(square), result);
}

// Within 2 units in the last place.
inline Floats erf(Floats x) {
  const Floats size = x.magnitude(), one = Floats::all(1.0f);
  const Floats small = x.multiply_add(erf_curve(x), x);
  const Floats large = one - exp_of_square(size, -1.0f) * erfc_scaled(size);
  return large.where(size.greater(one), small).with_sign_of(x);
}

// The integral of the normal distribution up to x, (1 + erf(x / sqrt 2)) / 2, within 5 units in the
// last place: where it is small, too.
inline Floats normal_cdf(Floats x) {
  const Floats one = Floats::all(1.0f), half = Floats::all(0.5f);
  const Floats scaled = x * Floats::all(0.707106781f), size = scaled.magnitude();
  const Floats small = half.multiply_add(scaled.multiply_add(erf_curve(scaled), scaled), half);
  const Floats beyond = half * exp_of_square(x, -0.5f) * erfc_scaled(size);
  const Floats large = (one - beyond).where(x.at_least(Floats::zero()), beyond);
  return large.where(size.greater(one), small);
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
