// SPDX-License-Identifier: Apache-2.0
//
// Attention over all keys from attention over two parts of them, weighted by the exponentials that
// each part summed.
#pragma once

#include <cstdint>

#include "attention_states/attention_states_args.h"
#include "vec/elements-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// prefix * prefix_share + suffix * suffix_share. A side whose share is not above 0 saw no keys, and
// its output, which may be anything, does not count.
template <typename Element>
inline void merge_row(typename Element::Stored* __restrict to,
                      const typename Element::Stored* __restrict prefix, float prefix_share,
                      const typename Element::Stored* __restrict suffix, float suffix_share,
                      int64_t count) {
  const bool with_prefix = prefix_share > 0, with_suffix = suffix_share > 0;
  for_registers(count, [&](int64_t i, auto part) {
    Floats sum = Floats::zero();
    if (with_prefix) sum = Element::load(prefix + i, part) * Floats::all(prefix_share);
    if (with_suffix) sum.add_product(Element::load(suffix + i, part), Floats::all(suffix_share));
    Element::store(sum, to + i, part);
  });
}

template <typename Element>
inline void merge_range(const MergeAttnStatesArgs& args, int64_t begin, int64_t end) {
  using Type = typename Element::Stored;
  const AttentionPart& prefix = args.prefix;
  const AttentionPart& suffix = args.suffix;
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t head = 0; head < args.heads; ++head) {
      const float a = prefix.lse[head * prefix.lse_head_stride + token * prefix.lse_token_stride];
      const float b = suffix.lse[head * suffix.lse_head_stride + token * suffix.lse_token_stride];
      const float greater = a > b ? a : b;
      // Where neither side saw a key, any finite shift keeps the exponentials from NaN.
      const float shift = greater == -__builtin_inff() ? 0.0f : greater;
      const float prefix_sum = __builtin_expf(a - shift), suffix_sum = __builtin_expf(b - shift);
      const float sum = prefix_sum + suffix_sum;
      const float divisor = sum == 0.0f ? 1.0f : sum;
      args.lse[head * args.tokens + token] = greater + __builtin_logf(sum);
      merge_row<Element>(
          static_cast<Type*>(args.output) + (token * args.heads + head) * args.head_size,
          static_cast<const Type*>(prefix.output) + token * prefix.token_stride +
              head * prefix.head_stride,
          prefix_sum / divisor,
          static_cast<const Type*>(suffix.output) + token * suffix.token_stride +
              head * suffix.head_stride,
          suffix_sum / divisor, args.head_size);
    }
  }
}

inline void merge_attn_states(const MergeAttnStatesArgs& args, int64_t begin, int64_t end) {
  with_element(args.type, [&](auto element) { merge_range<decltype(element)>(args, begin, end); });
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
