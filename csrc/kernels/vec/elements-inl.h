// SPDX-License-Identifier: Apache-2.0
//
// The types that values have in memory, each read into Floats and written from them, and walks
// along a row in steps of a register.
//
// Compiled once per instruction set, inside that set's namespace; see bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "vec/floats-inl.h"
#include "vec/rows.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// How much of a register is meant: all lanes, or the first `count`, which is fewer.
struct Whole {
  LaneBits bits() const { return ~LaneBits{0}; }
};
struct First {
  int64_t count;
  LaneBits bits() const { return first_lanes(count); }
};

struct Float32 {
  using Stored = float;
  static Floats load(const float* from, Whole = {}) { return Floats::load(from); }
  static Floats load(const float* from, First part) { return Floats::load(from, part.count); }
  static void store(Floats x, float* to, Whole = {}) { x.store(to); }
  static void store(Floats x, float* to, First part) { x.store(to, part.count); }
  static float widen(float value) { return value; }
};

struct Bf16 {
  using Stored = uint16_t;
  static Floats load(const uint16_t* from, Whole = {}) { return Floats::load_bf16(from); }
  static Floats load(const uint16_t* from, First part) {
    return Floats::load_bf16(from, part.count);
  }
  static void store(Floats x, uint16_t* to, Whole = {}) { x.store_bf16(to); }
  static void store(Floats x, uint16_t* to, First part) { x.store_bf16(to, part.count); }
  static float widen(uint16_t bits) { return widen_bf16(bits); }
};

struct Fp16 {
  using Stored = uint16_t;
  static Floats load(const uint16_t* from, Whole = {}) { return Floats::load_fp16(from); }
  static Floats load(const uint16_t* from, First part) {
    return Floats::load_fp16(from, part.count);
  }
  static void store(Floats x, uint16_t* to, Whole = {}) { x.store_fp16(to); }
  static void store(Floats x, uint16_t* to, First part) { x.store_fp16(to, part.count); }
  static float widen(uint16_t bits) { return widen_fp16(bits); }
};

// Calls body(Float32{}), body(Bf16{}) or body(Fp16{}): once per call of a kernel, outside its
// loops.
template <typename Body>
inline void with_element(ElementType type, const Body& body) {
  switch (type) {
    case ElementType::kFloat32:
      return body(Float32{});
    case ElementType::kBf16:
      return body(Bf16{});
    case ElementType::kFp16:
      return body(Fp16{});
  }
}

// Calls body(i, part) for the registers that make up `size` lanes: i is the first of them.
template <typename Body>
inline void for_registers(int64_t size, const Body& body) {
  int64_t i = 0;
  for (; i + Floats::kLanes <= size; i += Floats::kLanes) body(i, Whole{});
  if (i < size) body(i, First{size - i});
}

// Converts `size` elements; the two pieces of memory are disjoint.
template <typename From, typename To>
inline void convert_row(const typename From::Stored* __restrict from,
                        typename To::Stored* __restrict to, int64_t size) {
  for_registers(size,
                [&](int64_t i, auto part) { To::store(From::load(from + i, part), to + i, part); });
}

// Row `row` of rows whose elements are of that type.
template <typename Element>
inline typename Element::Stored* row_of(const Rows& rows, int64_t row) {
  int64_t offset = 0;
  for (int d = rows.dims - 1; d > 0; --d) {
    offset += row % rows.sizes[d] * rows.strides[d];
    row /= rows.sizes[d];
  }
  return static_cast<typename Element::Stored*>(rows.data) + offset + row * rows.strides[0];
}

template <typename Element>
inline const typename Element::Stored* data_of(const Parameters& parameters) {
  return static_cast<const typename Element::Stored*>(parameters.data);
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
