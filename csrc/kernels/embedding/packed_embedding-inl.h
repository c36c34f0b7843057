// SPDX-License-Identifier: Apache-2.0
//
// Rows out of a packed table, which is also the weight of the language-model head: a row of the
// table is a column of the strips.
#pragma once

#include <cstdint>

#include "embedding/embedding-inl.h"
#include "gemm/packed_linear_args.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Elements that are gathered before they are converted.
constexpr int64_t kGathered = 256;

template <typename From, typename To, int64_t kDepth, typename Row>
inline void embed_packed_range(const EmbeddingArgs& args, int64_t begin, int64_t end,
                               const Row& row) {
  using Stored = typename From::Stored;
  static_assert(kGathered % kDepth == 0);
  const int64_t units = (args.hidden + kDepth - 1) / kDepth;
  auto* output = static_cast<typename To::Stored*>(args.output);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t id = args.ids_are_int32 ? static_cast<const int32_t*>(args.ids)[i]
                                          : static_cast<const int64_t*>(args.ids)[i];
    const Stored* unit = static_cast<const Stored*>(args.weight) +
                         (id / kStripColumns * units * kStripColumns + id % kStripColumns) * kDepth;
    for (int64_t k = 0; k < args.hidden; k += kGathered) {
      const int64_t size = args.hidden - k < kGathered ? args.hidden - k : kGathered;
      Stored gathered[kGathered];
      for (int64_t j = 0; j < size; j += kDepth, unit += kStripColumns * kDepth) {
        __builtin_memcpy(gathered + j, unit, kDepth * sizeof(Stored));
      }
      row(gathered, output + i * args.hidden + k, size);
    }
  }
}

inline void packed_embedding(const EmbeddingArgs& args, int64_t begin, int64_t end) {
  with_element(args.weight_type, [&](auto from) {
    using From = decltype(from);
    constexpr int64_t kDepth = __is_same(From, Bf16) ? 2 : 1;
    if (args.output_type == args.weight_type) {
      return embed_packed_range<From, From, kDepth>(args, begin, end, copy_row<From>);
    }
    with_element(args.output_type, [&](auto to) {
      using To = decltype(to);
      embed_packed_range<From, To, kDepth>(args, begin, end, convert_row<From, To>);
    });
  });
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
