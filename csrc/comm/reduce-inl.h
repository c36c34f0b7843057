// SPDX-License-Identifier: Apache-2.0
// The reductions, once per instruction set: isa/*.cpp compile this file with flags of their own.
// Nothing of the standard library's inline code is used, of which the linker would keep one copy
// for the whole program. The compiler vectorises the loops.
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "reduce.h"

namespace anvil::comm::ANVIL_COMM_ISA {
namespace {

// Elements that are reduced at a time: their float32 values stay in the first-level cache.
constexpr size_t kBlock = 512;

struct Float16 {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float FloatOf(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

inline float Widen(Bfloat16 value) { return FloatOf(static_cast<uint32_t>(value.bits) << 16); }
// The upper half of the result is `value` as a bfloat16.
inline uint32_t RoundToBfloat16(float value) {
  const uint32_t bits = BitsOf(value);
  return value != value ? bits | 0x400000 : bits + 0x7fff + ((bits >> 16) & 1);
}
inline Bfloat16 NarrowBfloat16(float value) {
  return {static_cast<uint16_t>(RoundToBfloat16(value) >> 16)};
}

inline float Widen(Float16 value) {
  // Exponent and mantissa in float32's places, and 112 more in the exponent by a product, which
  // normalises subnormal numbers as well.
  const uint32_t shifted = static_cast<uint32_t>(value.bits & 0x7fff) << 13;
  const uint32_t finite = BitsOf(FloatOf(shifted) * 0x1p112f);
  const uint32_t special = shifted | 0x7f800000;
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  return FloatOf(sign | (shifted >= 0x0f800000 ? special : finite));
}
inline Float16 NarrowFloat16(float value) {
  const uint32_t bits = BitsOf(value) & 0x7fffffff;
  const uint32_t sign = (BitsOf(value) >> 16) & 0x8000;
  const uint32_t normal = (bits - (112u << 23) + 0xfff + ((bits >> 13) & 1)) >> 13;
  // Next to 0.5 float32 numbers are as far apart as subnormal float16 ones.
  const uint32_t subnormal = BitsOf(FloatOf(bits) + 0.5f) - BitsOf(0.5f);
  const uint32_t nan = 0x7e00 | ((bits >> 13) & 0x3ff);
  uint32_t result = bits < 0x38800000 ? subnormal : normal;
  result = bits >= 0x477ff000 ? 0x7c00 : result;
  result = bits > 0x7f800000 ? nan : result;
  return {static_cast<uint16_t>(sign | result)};
}

// What values of T are reduced in, and the way there and back for a block of them.
template <typename T>
struct Wide {
  using Type = T;
};
template <>
struct Wide<Float16> {
  using Type = float;
};
template <>
struct Wide<Bfloat16> {
  using Type = float;
};

template <typename T>
inline T Widen(T value) {
  return value;
}
template <typename T>
inline void Narrow(T* out, T value) {
  *out = value;
}
inline void Narrow(Bfloat16* out, float value) { *out = NarrowBfloat16(value); }
inline void Narrow(Float16* out, float value) { *out = NarrowFloat16(value); }

#if defined(__AVX512F__)
// GCC 12 takes the forms without a mask for a use of what is not initialised.
constexpr __mmask16 kAll = 0xffff;
#endif

// A block in the type that it is reduced in, and back. Conversions of float16 have instructions of
// their own, which the compiler does not find by itself; all else it makes of the plain loops.
template <typename W, typename T>
inline void WidenBlock(W* wide, const T* values, size_t count) {
  size_t i = 0;
#if defined(__AVX512F__)
  if constexpr (__is_same(T, Float16)) {
    for (; i + 16 <= count; i += 16) {
      _mm512_storeu_ps(wide + i,
                       _mm512_maskz_cvtph_ps(
                           kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + i))));
    }
  }
#elif defined(__F16C__)
  if constexpr (__is_same(T, Float16)) {
    for (; i + 8 <= count; i += 8) {
      _mm256_storeu_ps(
          wide + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values + i))));
    }
  }
#endif
  for (; i < count; ++i) wide[i] = Widen(values[i]);
}
template <typename T, typename W>
inline void NarrowBlock(T* values, const W* wide, size_t count) {
  size_t i = 0;
#if defined(__AVX512F__)
  if constexpr (__is_same(T, Float16)) {
    for (; i + 16 <= count; i += 16) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + i),
                          _mm512_maskz_cvtps_ph(kAll, _mm512_loadu_ps(wide + i),
                                                _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
  }
#elif defined(__F16C__)
  if constexpr (__is_same(T, Float16)) {
    for (; i + 8 <= count; i += 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(values + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(wide + i),
                                       _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
  }
#endif
  for (; i < count; ++i) Narrow(&values[i], wide[i]);
}

// Sums and products of integers wrap around, as those of tensors do; in an unsigned type, where
// that is defined.
template <typename T>
struct Unsigned {
  using Type = T;
};
template <>
struct Unsigned<int8_t> {
  using Type = uint32_t;
};
template <>
struct Unsigned<uint8_t> {
  using Type = uint32_t;
};
template <>
struct Unsigned<int16_t> {
  using Type = uint32_t;
};
template <>
struct Unsigned<uint16_t> {
  using Type = uint32_t;
};
template <>
struct Unsigned<int32_t> {
  using Type = uint32_t;
};
template <>
struct Unsigned<int64_t> {
  using Type = uint64_t;
};

template <ReduceOp op, typename T>
inline T Combine(T a, T b) {
  using U = typename Unsigned<T>::Type;
  if constexpr (op == ReduceOp::kSum || op == ReduceOp::kAverage) {
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else if constexpr (op == ReduceOp::kProduct) {
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  } else if constexpr (op == ReduceOp::kMin) {
    return a != a || a < b ? a : b;
  } else {
    return a != a || a > b ? a : b;
  }
}

template <ReduceOp op, typename W>
inline W Finished(W total, int ranks) {
  return op == ReduceOp::kAverage ? static_cast<W>(total / static_cast<W>(ranks)) : total;
}

// total[i] = total[i] op values[i]
template <ReduceOp op, typename W, typename T>
inline void CombineBlock(W* total, const T* values, size_t count) {
  if constexpr (__is_same(T, Float16)) {
    alignas(64) W wide[kBlock];
    WidenBlock(wide, values, count);
    CombineBlock<op>(total, wide, count);
  } else {
    for (size_t i = 0; i < count; ++i) total[i] = Combine<op>(total[i], Widen(values[i]));
  }
}

// Any number of ranks: input by input, with the totals of a block in the cache.
template <typename T, ReduceOp op>
void ReduceByBlocks(T* out, const void* const* inputs, int ranks, size_t count) {
  using W = typename Wide<T>::Type;
  alignas(64) W total[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t size = count - begin < kBlock ? count - begin : kBlock;
    const auto input = [&](int rank) { return static_cast<const T*>(inputs[rank]) + begin; };
    WidenBlock(total, input(0), size);
    for (int rank = 1; rank < ranks; ++rank) CombineBlock<op>(total, input(rank), size);
    for (size_t i = 0; i < size; ++i) total[i] = Finished<op>(total[i], ranks);
    NarrowBlock(out + begin, total, size);
  }
}

// Few ranks, whose inputs are as many streams: totals stay in registers. An input that is the
// output as well is read first.
template <ReduceOp op, int ranks, typename T>
void ReduceInStep(T* out, const void* const* inputs, size_t count) {
  const T* from[ranks];
  for (int rank = 0; rank < ranks; ++rank) from[rank] = static_cast<const T*>(inputs[rank]);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    auto total = Widen(from[0][i]);
    for (int rank = 1; rank < ranks; ++rank) total = Combine<op>(total, Widen(from[rank][i]));
    Narrow(&out[i], Finished<op>(total, ranks));
  }
}

// Two bfloat16 are the halves of a lane, so that none has to be moved.
template <ReduceOp op, int ranks>
void ReduceInStep(Bfloat16* out, const void* const* inputs, size_t count) {
  const Bfloat16* from[ranks];
  for (int rank = 0; rank < ranks; ++rank) from[rank] = static_cast<const Bfloat16*>(inputs[rank]);
  constexpr uint32_t kUpper = 0xffff0000;
  const size_t pairs = count / 2;
#pragma GCC ivdep
  for (size_t i = 0; i < pairs; ++i) {
    uint32_t pair;
    memcpy(&pair, from[0] + 2 * i, sizeof(pair));
    float lower = FloatOf(pair << 16), upper = FloatOf(pair & kUpper);
    for (int rank = 1; rank < ranks; ++rank) {
      memcpy(&pair, from[rank] + 2 * i, sizeof(pair));
      lower = Combine<op>(lower, FloatOf(pair << 16));
      upper = Combine<op>(upper, FloatOf(pair & kUpper));
    }
    pair = RoundToBfloat16(Finished<op>(lower, ranks)) >> 16 |
           (RoundToBfloat16(Finished<op>(upper, ranks)) & kUpper);
    memcpy(out + 2 * i, &pair, sizeof(pair));
  }
  if (2 * pairs < count) {
    const void* last[ranks];
    for (int rank = 0; rank < ranks; ++rank) last[rank] = from[rank] + 2 * pairs;
    ReduceByBlocks<Bfloat16, op>(out + 2 * pairs, last, ranks, 1);
  }
}

template <typename T, ReduceOp op>
void Reduce(void* out, const void* const* inputs, int ranks, size_t count) {
  T* const result = static_cast<T*>(out);
  if constexpr (!__is_same(T, Float16)) {
    switch (ranks) {
      case 2:
        return ReduceInStep<op, 2>(result, inputs, count);
      case 3:
        return ReduceInStep<op, 3>(result, inputs, count);
      case 4:
        return ReduceInStep<op, 4>(result, inputs, count);
    }
  }
  ReduceByBlocks<T, op>(result, inputs, ranks, count);
}

}  // namespace

#define ANVIL_REDUCE_ROW(T)                                                                \
  {&Reduce<T, ReduceOp::kSum>, &Reduce<T, ReduceOp::kProduct>, &Reduce<T, ReduceOp::kMin>, \
   &Reduce<T, ReduceOp::kMax>, &Reduce<T, ReduceOp::kAverage>}

extern const ReduceTable reduce_table;
const ReduceTable reduce_table = {{
    ANVIL_REDUCE_ROW(int8_t),
    ANVIL_REDUCE_ROW(uint8_t),
    ANVIL_REDUCE_ROW(int16_t),
    ANVIL_REDUCE_ROW(uint16_t),
    ANVIL_REDUCE_ROW(int32_t),
    ANVIL_REDUCE_ROW(uint32_t),
    ANVIL_REDUCE_ROW(int64_t),
    ANVIL_REDUCE_ROW(uint64_t),
    ANVIL_REDUCE_ROW(Float16),
    ANVIL_REDUCE_ROW(Bfloat16),
    ANVIL_REDUCE_ROW(float),
    ANVIL_REDUCE_ROW(double),
    // Of two values, 0 and 1: "or" is their maximum, "and" their minimum.
    {&Reduce<uint8_t, ReduceOp::kMax>, &Reduce<uint8_t, ReduceOp::kMin>,
     &Reduce<uint8_t, ReduceOp::kMin>, &Reduce<uint8_t, ReduceOp::kMax>, nullptr},
}};

#undef ANVIL_REDUCE_ROW

}  // namespace anvil::comm::ANVIL_COMM_ISA
