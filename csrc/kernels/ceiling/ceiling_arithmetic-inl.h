// SPDX-License-Identifier: Apache-2.0
//
// Does nothing but arithmetic, in registers. There are as many independent accumulators as fit:
// enough for every unit to begin an operation per cycle while the earlier ones are under way.
#pragma once

#include <cstdint>

#include "ceiling/ceiling_args.h"
#include "vec/elements-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

#if ANVIL_VECTOR_BYTES == 64
constexpr int kAccumulators = 24;  // of 32 registers
#else
constexpr int kAccumulators = 12;  // of 16 registers
#endif

// Lane j of accumulator i begins with number (i * kLanes + j) of the seed, going round.
template <typename Element>
inline Floats seed_lanes(const CeilingArithmeticArgs& args, int64_t accumulator) {
  float lanes[Floats::kLanes];
  for (int64_t i = 0; i < Floats::kLanes; ++i) {
    const int64_t number = (accumulator * Floats::kLanes + i) % args.count;
    lanes[i] = Element::widen(static_cast<const typename Element::Stored*>(args.seed)[number]);
  }
  return Floats::load(lanes);
}

inline double sum_of(const Floats (&accumulators)[kAccumulators]) {
  double result = 0;
  for (const Floats& accumulator : accumulators) {
    float lanes[Floats::kLanes];
    accumulator.store(lanes);
    for (float lane : lanes) result += static_cast<double>(lane);
  }
  return result;
}

// accumulator = accumulator / 2 + seed: it stays finite, and tends to twice the seed.
template <typename Element>
inline CeilingArithmeticResult multiply_and_add(const CeilingArithmeticArgs& args) {
  Floats accumulators[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) accumulators[i] = seed_lanes<Element>(args, i);
  const Floats addend = seed_lanes<Element>(args, 0);
  const auto half = Floats::zero().value + 0.5f;
  for (int64_t step = 0; step < args.steps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < kAccumulators; ++i) {
      accumulators[i].value = accumulators[i].value * half + addend.value;
    }
  }
  constexpr double kOperations = 2.0 * Floats::kLanes * kAccumulators;
  return {kOperations * static_cast<double>(args.steps), sum_of(accumulators)};
}

#if defined(__AVX512BF16__)

// Two products of bfloat16 pairs per lane are added, and then taken off again.
inline CeilingArithmeticResult dot_products(const CeilingArithmeticArgs& args) {
  Floats accumulators[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) accumulators[i] = seed_lanes<Bf16>(args, i);
  const Floats x = seed_lanes<Bf16>(args, 0);
  const __m512bh left = _mm512_cvtne2ps_pbh(x.value, x.value);
  const __m512bh right = _mm512_cvtne2ps_pbh(x.value, x.value);
  const __m512bh minus = _mm512_cvtne2ps_pbh(-x.value, -x.value);
  for (int64_t step = 0; step < args.steps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < kAccumulators; ++i) {
      accumulators[i].value = _mm512_dpbf16_ps(accumulators[i].value, left, right);
    }
#pragma GCC unroll 24
    for (int i = 0; i < kAccumulators; ++i) {
      accumulators[i].value = _mm512_dpbf16_ps(accumulators[i].value, left, minus);
    }
  }
  constexpr double kOperations = 2.0 * 4.0 * Floats::kLanes * kAccumulators;
  return {kOperations * static_cast<double>(args.steps), sum_of(accumulators)};
}

#endif

inline CeilingArithmeticResult ceiling_arithmetic(const CeilingArithmeticArgs& args) {
#if defined(__AVX512BF16__)
  if (args.type == ElementType::kBf16) return dot_products(args);
#endif
  CeilingArithmeticResult result = {0, 0};
  with_element(args.type,
               [&](auto element) { result = multiply_and_add<decltype(element)>(args); });
  return result;
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
