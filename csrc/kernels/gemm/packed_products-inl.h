// SPDX-License-Identifier: Apache-2.0
//
// How packed weights are multiplied: a product says which type weights have, of which type inputs
// have to be (linear_input-inl.h), and what one step over the depth reads and does. A step covers
// kDepth elements, for which an input has kInputStep, and has kPhases multiplications per output,
// one after the other. kSumSteps steps are summed by themselves; kFetchSteps lie between two looks
// at what is to be fetched. Up to kStreamedRows rows of a strip cost less time than its weights
// take to arrive.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "gemm/kept_remainders-inl.h"
#include "gemm/packed_linear_args.h"
#include "vec/elements-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Registers of a strip.
constexpr int kStripRegisters = static_cast<int>(kStripColumns / Floats::kLanes);

// The first or the second of pairs of bfloat16, a pair per lane.
template <int kPhase>
inline Floats load_of_pairs(const uint16_t* from) {
#if ANVIL_VECTOR_BYTES == 64
  const __m512i pairs = _mm512_loadu_si512(from);
  return {_mm512_castsi512_ps(kPhase == 0 ? _mm512_slli_epi32(pairs, 16)
                                          : _mm512_and_si512(pairs, _mm512_set1_epi32(-65536)))};
#elif ANVIL_VECTOR_BYTES == 32
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return {_mm256_castsi256_ps(kPhase == 0 ? _mm256_slli_epi32(pairs, 16)
                                          : _mm256_and_si256(pairs, _mm256_set1_epi32(-65536)))};
#else
  return {widen_bf16(from[kPhase])};
#endif
}

// Elements of the depth that lie side by side in a strip.
template <typename Weight>
constexpr int64_t kPackedUnit = 1;
template <>
inline constexpr int64_t kPackedUnit<Bf16> = 2;

// A step is a unit.
struct UnitSteps {
  static constexpr int64_t kSumSteps = 64, kFetchSteps = 8;
  static constexpr bool kKeepsRemainders = false;
};

// float32 arithmetic.
struct FloatInput : UnitSteps {
  using Input = Float32;
  static constexpr int kStreamedRows = 2;
  static Floats multiply_add(Floats sum, Floats x, Floats weight) {
    sum.add_product(x, weight);
    return sum;
  }
};

struct PairsByFloat : FloatInput {
  using Weight = Bf16;
  static constexpr int kDepth = 2, kInputStep = 2, kPhases = 2;
  template <int kPhase>
  static Floats columns(const uint16_t* from) {
    return load_of_pairs<kPhase>(from);
  }
  template <int kPhase>
  static Floats value(const float* from) {
    return Floats::all(from[kPhase]);
  }
};

template <typename Element>
struct ElementsByFloat : FloatInput {
  using Weight = Element;
  static constexpr int kDepth = 1, kInputStep = 1, kPhases = 1;
  template <int kPhase>
  static Floats columns(const typename Element::Stored* from) {
    return Element::load(from);
  }
  template <int kPhase>
  static Floats value(const float* from) {
    return Floats::all(*from);
  }
};

#if defined(__AVX512BF16__)

// Pairs by pairs: a lane of a register is a pair, whose products are both added to the sum.
struct PairsByPairs : UnitSteps {
  using Input = Bf16;
  using Weight = Bf16;
  static constexpr int kDepth = 2, kInputStep = 2, kPhases = 1, kStreamedRows = 4;
  template <int kPhase>
  static Floats columns(const uint16_t* from) {
    return {_mm512_castsi512_ps(_mm512_loadu_si512(from))};
  }
  template <int kPhase>
  static Floats value(const uint16_t* from) {
    int32_t pair;
    __builtin_memcpy(&pair, from, sizeof(pair));
    return {_mm512_castsi512_ps(_mm512_set1_epi32(pair))};
  }
  static Floats multiply_add(Floats sum, Floats x, Floats weight) {
    return {_mm512_dpbf16_ps(sum.value, reinterpret_cast<__m512bh>(x.value),
                             reinterpret_cast<__m512bh>(weight.value))};
  }
};

// Groups of pairs, and after them once more the pair of each that keeps its remainder. The depth
// may end within a group.
struct PairsAndRemainders : PairsByPairs {
  using Pairs = PairsByPairs;
  static constexpr int kDepth = kGroupDepth, kInputStep = kGroupElements, kPhases = kGroupPairs;
  static constexpr int64_t kSumSteps = PairsByPairs::kSumSteps / kGroupPairs;
  static constexpr int64_t kFetchSteps = PairsByPairs::kFetchSteps / kGroupPairs;
  static constexpr int kStreamedRows = 2;
  static constexpr bool kKeepsRemainders = true;
  template <int kPhase>
  static Floats columns(const uint16_t* from) {
    return PairsByPairs::columns<0>(from + kPhase * PairsByPairs::kDepth * kStripColumns);
  }
  template <int kPhase>
  static Floats value(const uint16_t* from) {
    return PairsByPairs::value<0>(from + kPhase * PairsByPairs::kDepth);
  }
  static Floats remainder(const uint16_t* from) {
    return PairsByPairs::value<0>(from + kGroupDepth);
  }
  // Elements from the group's weights of a strip to those of the pair that has the remainder.
  static int32_t place(const uint16_t* from) {
    int32_t place;
    __builtin_memcpy(&place, from + kGroupDepth + 2, sizeof(place));
    return place;
  }
};

#endif

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
