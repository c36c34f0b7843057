// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "embedding/embedding_args.h"
#include "vec/bytes-inl.h"
#include "vec/elements-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Bits that stay as they are, those of NaN too.
template <typename Element>
inline void copy_row(const typename Element::Stored* from, typename Element::Stored* to,
                     int64_t hidden) {
  constexpr int64_t kBytes = sizeof(typename Element::Stored);
  copy_bytes(reinterpret_cast<char*>(to), reinterpret_cast<const char*>(from), hidden * kBytes);
}

template <typename From, typename To, typename Row>
inline void embed_range(const EmbeddingArgs& args, int64_t begin, int64_t end, const Row& row) {
  const auto* weight = static_cast<const typename From::Stored*>(args.weight);
  auto* output = static_cast<typename To::Stored*>(args.output);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t id = args.ids_are_int32 ? static_cast<const int32_t*>(args.ids)[i]
                                          : static_cast<const int64_t*>(args.ids)[i];
    row(weight + id * args.weight_stride, output + i * args.hidden, args.hidden);
  }
}

inline void embedding(const EmbeddingArgs& args, int64_t begin, int64_t end) {
  with_element(args.weight_type, [&](auto from) {
    using From = decltype(from);
    if (args.output_type == args.weight_type) {
      return embed_range<From, From>(args, begin, end, copy_row<From>);
    }
    with_element(args.output_type, [&](auto to) {
      using To = decltype(to);
      embed_range<From, To>(args, begin, end, convert_row<From, To>);
    });
  });
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
