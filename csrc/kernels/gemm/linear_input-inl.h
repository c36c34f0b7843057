// SPDX-License-Identifier: Apache-2.0
//
// The rows of a linear layer's input as a product reads them: where they lie, or a copy that is
// converted or rounded and, past the depth, zero. The copy is made once for all columns.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gemm/packed_products-inl.h"
#include "vec/bytes-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Calls body(Product{}) with the product of these types.
template <typename Body>
inline void with_product(const PackedLinearArgs& args, const Body& body) {
  switch (args.weight_type) {
    case ElementType::kFloat32:
      return body(ElementsByFloat<Float32>{});
    case ElementType::kFp16:
      return body(ElementsByFloat<Fp16>{});
    case ElementType::kBf16:
#if defined(__AVX512BF16__)
      if (args.input_type == ElementType::kBf16 || args.rounding == InputRounding::kAll) {
        return body(PairsByPairs{});
      }
      if (args.rounding == InputRounding::kMost) return body(PairsAndRemainders{});
#endif
      return body(PairsByFloat{});
  }
}

// The depth of a packed weight.
template <typename Product>
inline int64_t packed_depth(const PackedLinearArgs& args) {
  constexpr int64_t kUnit = kPackedUnit<typename Product::Weight>;
  return (args.depth + kUnit - 1) / kUnit * kUnit;
}

// Elements of a prepared row: as many as whole steps take.
template <typename Product>
inline int64_t prepared_size(const PackedLinearArgs& args) {
  return (args.depth + Product::kDepth - 1) / Product::kDepth * Product::kInputStep;
}

// Whether the rows can be read where they lie.
template <typename Product, typename From>
inline bool reads_as_it_lies(const PackedLinearArgs& args) {
  using Input = typename Product::Input;
  const bool rounds = args.rounding != InputRounding::kNone && args.input_type != args.weight_type;
  return std::is_same_v<Input, From> && !rounds && prepared_size<Product>(args) == args.depth;
}

#if defined(__AVX512BF16__)

template <typename From>
inline void prepare_mostly_rounded(const typename From::Stored* from, uint16_t* to, int64_t depth) {
  for_registers(depth, [&](int64_t i, auto part) {
    MostlyRounded groups[2];
    round_mostly(From::load(from + i, part), groups);
    const int64_t count = depth - i > kGroupDepth ? 2 : 1;
    __builtin_memcpy(to + i / kGroupDepth * kGroupElements, groups, count * sizeof(groups[0]));
  });
}

#endif

template <typename From>
inline void round_mostly(const typename From::Stored* from, float* to, int64_t depth) {
  for (int64_t i = 0; i < depth; i += kGroupDepth) {
    const int64_t count = depth - i < kGroupDepth ? depth - i : kGroupDepth;
    float group[kGroupDepth] = {};
    for (int64_t k = 0; k < count; ++k) group[k] = From::widen(from[i + k]);
    round_mostly(group);
    for (int64_t k = 0; k < count; ++k) to[i + k] = group[k];
  }
}

template <typename Product, typename From>
inline void prepare_row(const PackedLinearArgs& args, const typename From::Stored* from,
                        typename Product::Input::Stored* to) {
  using Input = typename Product::Input;
  using Weight = typename Product::Weight;
  constexpr bool kMayRound = !std::is_same_v<Input, Weight> && !std::is_same_v<From, Weight>;
  if constexpr (Product::kKeepsRemainders) {
    return prepare_mostly_rounded<From>(from, to, args.depth);
  } else if (kMayRound && args.rounding == InputRounding::kMost) {
    if constexpr (kMayRound) round_mostly<From>(from, to, args.depth);
  } else if (kMayRound && args.rounding == InputRounding::kAll) {
    for_registers(args.depth, [&](int64_t i, auto part) {
      typename Weight::Stored rounded[Floats::kLanes];
      Weight::store(From::load(from + i, part), rounded, part);
      Input::store(Weight::load(rounded, part), to + i, part);
    });
  } else {
    convert_row<From, Input>(from, to, args.depth);
  }
  for (int64_t i = args.depth; i < prepared_size<Product>(args); ++i) to[i] = 0;
}

inline int64_t linear_input_bytes(const PackedLinearArgs& args) {
  int64_t bytes = 0;
  with_product(args, [&](auto product) {
    using Product = decltype(product);
    with_element(args.input_type, [&](auto from) {
      if (reads_as_it_lies<Product, decltype(from)>(args)) return;
      bytes = prepared_size<Product>(args) *
              static_cast<int64_t>(sizeof(typename Product::Input::Stored));
    });
  });
  return bytes;
}

inline void prepare_linear_input(const PackedLinearArgs& args, int64_t begin, int64_t end) {
  with_product(args, [&](auto product) {
    using Product = decltype(product);
    with_element(args.input_type, [&](auto element) {
      using From = decltype(element);
      const int64_t size = prepared_size<Product>(args);
      const auto* from = static_cast<const typename From::Stored*>(args.input);
      auto* to = static_cast<typename Product::Input::Stored*>(args.prepared);
      for (int64_t row = begin; row < end; ++row) {
        prepare_row<Product, From>(args, from + row * args.input_stride, to + row * size);
      }
    });
  });
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
