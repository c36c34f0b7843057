// SPDX-License-Identifier: Apache-2.0
//
// How attention multiplies. A unit is what one lane of a register holds: a float32, or two
// neighbouring bfloat16, whose products with another unit are added to a float32 sum.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "vec/bytes-inl.h"
#include "vec/cache_elements-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Units are moved as float32 lanes, whatever their bits mean.
inline Floats load_units(const void* from) { return Floats::load(static_cast<const float*>(from)); }

inline Floats all_units(const void* from) {
  float unit;
  __builtin_memcpy(&unit, from, sizeof(unit));
  return Floats::all(unit);
}

// float32 numbers.
struct FloatProduct {
  static constexpr int kPerUnit = 1;
  using Stored = float;
  // Elements of keys and values where products read them, and how rows are copied to be such.
  using Cached = float;
  using Copies = FloatProduct;
  static constexpr CacheType kCacheType = CacheType::kFloat32;
  // From how many rows on keys are transposed for all of them.
  static constexpr int64_t kRowsToTranspose = 8;
  // How many rows values are read for at once.
  static constexpr int kValueRows = 4;
  // kLanes units of a row.
  static Floats load(const float* row) { return Floats::load(row); }
  // Whether numbers of a type are held exactly.
  template <typename From>
  static constexpr bool kHolds = true;

  static Floats multiply_add(Floats sum, Floats a, Floats b) {
    sum.add_product(a, b);
    return sum;
  }
  // `size` elements of a row of the cache.
  template <typename From>
  static void convert(const typename From::Stored* from, int64_t size, float* to) {
    convert_row<From, Float32>(from, to, size);
  }
  // One row, `columns` of it, as units.
  static void units_of_rows(const float* row, int64_t, int64_t columns, float* to) {
    convert_row<Float32, Float32>(row, to, columns);
  }
  // Weights of kPerUnit keys for the same rows, as units.
  static Floats unit_of(const Floats (&weights)[1]) { return weights[0]; }
  // Adds the weights in units.
  static Floats add_weights(Floats sum, Floats units) { return sum + units; }
  // 2 * kLanes columns of one row.
  static void columns_of_unit(const float* row, int64_t, Floats (&columns)[2]) {
    columns[0] = Floats::load(row);
    columns[1] = Floats::load(row + Floats::kLanes);
  }
  // Weights as units of `kTerms` terms that add up to them; `weights` is 2 registers.
  template <int kTerms>
  static void store_weights(const Floats (&weights)[2], float* to, int64_t) {
    static_assert(kTerms == 1);
    weights[0].store(to);
    weights[1].store(to + Floats::kLanes);
  }
};

#if defined(__AVX512BF16__)

inline __m512bh as_pairs(Floats units) { return reinterpret_cast<__m512bh>(units.value); }

inline Floats as_units(__m512i bits) { return {_mm512_castsi512_ps(bits)}; }

// 32 numbers to the nearest bfloat16, in their order.
inline __m512i narrow_pairs(Floats low, Floats high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.value, low.value));
}

inline Floats widen_low(__m512i halves) {
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(halves)), 16))};
}
inline Floats widen_high(__m512i halves) {
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(halves, 1)), 16))};
}

// The numbers of two rows as pairs, 16 columns a register.
inline void interleave(__m512i first, __m512i second, Floats (&columns)[2]) {
  // Column c of a register: element c of the first row, then of the second (32 and on).
  alignas(64) static constexpr uint16_t kOrder[2][32] = {
      {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
       8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
      {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
       24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63},
  };
  columns[0] = as_units(_mm512_permutex2var_epi16(first, _mm512_load_si512(kOrder[0]), second));
  columns[1] = as_units(_mm512_permutex2var_epi16(first, _mm512_load_si512(kOrder[1]), second));
}

// Pairs of bfloat16.
struct PairProduct {
  static constexpr int kPerUnit = 2;
  using Stored = uint16_t;
  using Cached = uint16_t;
  using Copies = PairProduct;
  static constexpr CacheType kCacheType = CacheType::kBf16;
  static constexpr int64_t kRowsToTranspose = 6;
  static constexpr int kValueRows = 4;
  static Floats load(const uint16_t* row) { return load_units(row); }
  template <typename From>
  static constexpr bool kHolds = sizeof(typename From::Stored) == 1 || __is_same(From, Bf16);

  static Floats multiply_add(Floats sum, Floats a, Floats b) {
    return {_mm512_dpbf16_ps(sum.value, as_pairs(a), as_pairs(b))};
  }
  template <typename From>
  static void convert(const typename From::Stored* from, int64_t size, uint16_t* to) {
    for (; size >= 32; size -= 32, from += 32, to += 32) {
      _mm512_storeu_si512(to, as_bf16<From>(from));
    }
    if (size > 0) {
      const auto part = static_cast<__mmask32>((uint32_t{1} << size) - 1);
      _mm512_mask_storeu_epi16(to, part, as_bf16<From>(from, size));
    }
  }
  static void units_of_rows(const uint16_t* row, int64_t stride, int64_t columns, float* to) {
    for (int64_t c = 0; c < columns; c += 2 * Floats::kLanes) {
      Floats units[2];
      columns_of_unit(row + c, stride, units);
      units[0].store(to + c);
      units[1].store(to + c + Floats::kLanes);
    }
  }
  static Floats unit_of(const Floats (&weights)[2]) {
    Floats units[2];
    const __m512i halves = narrow_pairs(weights[0], weights[1]);
    interleave(halves, _mm512_castsi256_si512(_mm512_extracti64x4_epi64(halves, 1)), units);
    return units[0];
  }
  // As they were rounded: what rounding does to the largest weight then cancels.
  static Floats add_weights(Floats sum, Floats units) {
    return multiply_add(sum, units, as_units(_mm512_set1_epi32(0x3f803f80)));  // pairs of 1
  }
  static void columns_of_unit(const uint16_t* row, int64_t stride, Floats (&columns)[2]) {
    interleave(_mm512_loadu_si512(row), _mm512_loadu_si512(row + stride), columns);
  }

  // A second term, `distance` elements behind, has what the rounding of the first left.
  template <int kTerms>
  static void store_weights(const Floats (&weights)[2], uint16_t* to, int64_t distance) {
    const __m512i first = narrow_pairs(weights[0], weights[1]);
    _mm512_storeu_si512(to, first);
    if constexpr (kTerms == 2) {
      _mm512_storeu_si512(to + distance, narrow_pairs(weights[0] - widen_low(first),
                                                      weights[1] - widen_high(first)));
    }
  }

 private:
  // 32 elements of the cache, all of which bfloat16 holds exactly, or the first `count`.
  template <typename From>
  static __m512i as_bf16(const typename From::Stored* from) {
    if constexpr (sizeof(*from) == 1) {
      return From::widen_to_bf16(from);
    } else {
      return _mm512_loadu_si512(from);
    }
  }
  template <typename From>
  static __m512i as_bf16(const typename From::Stored* from, int64_t count) {
    if constexpr (sizeof(*from) == 1) {
      return From::widen_to_bf16(from, count);
    } else {
      return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint32_t{1} << count) - 1), from);
    }
  }
};

// Rows of a cache as they are.
template <typename Element>
struct UnchangedRows {
  using Stored = typename Element::Stored;
  static constexpr CacheType kCacheType = Element::kCacheType;
  template <typename From>
  static constexpr bool kHolds = __is_same(From, Element);
  template <typename From>
  static void convert(const Stored* from, int64_t size, Stored* to) {
    copy_bytes(reinterpret_cast<char*>(to), reinterpret_cast<const char*>(from),
               size * static_cast<int64_t>(sizeof(Stored)));
  }
};

// Pairs of bfloat16, of elements of one byte that become such in registers.
template <typename Element>
struct BytePairProduct : PairProduct {
  using Cached = typename Element::Stored;
  using Copies = UnchangedRows<Element>;
  static constexpr int64_t kRowsToTranspose = 2;
  static constexpr int kValueRows = 8;
  static Floats load(const Cached* row) { return as_units(Element::widen_to_bf16(row)); }
  static void columns_of_unit(const Cached* row, int64_t stride, Floats (&columns)[2]) {
    interleave(Element::widen_to_bf16(row), Element::widen_to_bf16(row + stride), columns);
  }
};

#endif

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
