// SPDX-License-Identifier: Apache-2.0
//
// Weights into the packed form and out of it; see packed_linear_args.h for the form.
#pragma once

#include <cstdint>

#include "gemm/packed_linear_args.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Calls body(column, k, packed) for every place of a strip: element k of a column, or padding.
template <int64_t kDepth, typename Stored, typename Body>
inline void for_strip(const PackArgs& args, int64_t strip, const Body& body) {
  const int64_t units = (args.depth + kDepth - 1) / kDepth;
  auto* packed = static_cast<Stored*>(args.packed) + strip * units * kStripColumns * kDepth;
  for (int64_t unit = 0; unit < units; ++unit) {
    for (int64_t c = 0; c < kStripColumns; ++c) {
      for (int64_t i = 0; i < kDepth; ++i) {
        body(strip * kStripColumns + c, unit * kDepth + i, *packed++);
      }
    }
  }
}

template <int64_t kDepth, typename Stored>
inline void pack_strips(const PackArgs& args, int64_t begin, int64_t end) {
  const auto* plain = static_cast<const Stored*>(args.plain);
  for (int64_t strip = begin; strip < end; ++strip) {
    for_strip<kDepth, Stored>(args, strip, [&](int64_t column, int64_t k, Stored& packed) {
      const bool inside = column < args.columns && k < args.depth;
      packed = inside ? plain[column * args.plain_stride + k] : Stored{0};
    });
  }
}

template <int64_t kDepth, typename Stored>
inline void unpack_strips(const PackArgs& args, int64_t begin, int64_t end) {
  auto* plain = static_cast<Stored*>(args.plain);
  for (int64_t strip = begin; strip < end; ++strip) {
    for_strip<kDepth, Stored>(args, strip, [&](int64_t column, int64_t k, Stored& packed) {
      if (column < args.columns && k < args.depth) plain[column * args.plain_stride + k] = packed;
    });
  }
}

// Bits that stay as they are, whatever they mean: NaN too.
inline void pack_linear(const PackArgs& args, int64_t begin, int64_t end) {
  switch (args.type) {
    case ElementType::kFloat32:
      return pack_strips<1, uint32_t>(args, begin, end);
    case ElementType::kBf16:
      return pack_strips<2, uint16_t>(args, begin, end);
    case ElementType::kFp16:
      return pack_strips<1, uint16_t>(args, begin, end);
  }
}

inline void unpack_linear(const PackArgs& args, int64_t begin, int64_t end) {
  switch (args.type) {
    case ElementType::kFloat32:
      return unpack_strips<1, uint32_t>(args, begin, end);
    case ElementType::kBf16:
      return unpack_strips<2, uint16_t>(args, begin, end);
    case ElementType::kFp16:
      return unpack_strips<1, uint16_t>(args, begin, end);
  }
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
