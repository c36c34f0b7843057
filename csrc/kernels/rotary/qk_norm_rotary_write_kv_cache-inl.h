// SPDX-License-Identifier: Apache-2.0
//
// Between projection and attention: RMS norm of each head of queries and keys, rotary embedding,
// and keys and values written into the paged cache.
//
// A token goes through all steps before the next one begins, so that its rows are in the nearest
// cache from the first step on. Each step is the one of the separate kernels and leaves what they
// leave in memory, so that results are theirs bit for bit.
#pragma once

#include <cstdint>

#include "norm/rms_norm-inl.h"
#include "rotary/qk_norm_rotary_write_kv_cache_args.h"
#include "rotary/rotary_embedding-inl.h"
#include "vec/bytes-inl.h"
#include "vec/elements-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

constexpr int64_t kHeadsAtOnce = 64;

// Heads are short, so that most of a norm is waiting for one sum, one square root and one quotient.
// The scales of many heads before any of them is used wait for each other's less.
inline void norm_heads(const RmsNormParameters& norm, const HeadStates& states, int64_t token) {
  double scales[kHeadsAtOnce];
  HeadStates some = states;
  for (int64_t first = 0; first < states.heads; first += kHeadsAtOnce) {
    const int64_t rest = states.heads - first;
    some.heads = rest < kHeadsAtOnce ? rest : kHeadsAtOnce;
    with_element(states.type, [&](auto element) {
      using Element = decltype(element);
      using Stored = typename Element::Stored;
      some.data = static_cast<Stored*>(states.data) + first * states.head_stride;
      double* scale = scales;
      for_heads<Element>(some, token, [&](const Stored* head) {
        *scale++ = rms_scale(norm, PlainRow<Element>{head});
      });
      scale = scales;
      with_element(norm.weight.type, [&](auto weight) {
        for_heads<Element>(some, token, [&](Stored* head) {
          scale_row<Element, decltype(weight)>(norm, PlainRow<Element>{head}, *scale++, head);
        });
      });
    });
  }
}

// `size` elements of one type as they are, of two types converted.
template <typename From>
inline void write_head(const typename From::Stored* from, ElementType from_type,
                       const PagedStates& cache, int64_t at, int64_t size) {
  if (from_type == cache.type) {
    constexpr int64_t kBytes = sizeof(typename From::Stored);
    copy_bytes(static_cast<char*>(cache.data) + at * kBytes, reinterpret_cast<const char*>(from),
               size * kBytes);
    return;
  }
  with_element(cache.type, [&](auto to) {
    using To = decltype(to);
    convert_row<From, To>(from, static_cast<typename To::Stored*>(cache.data) + at, size);
  });
}

inline void write_heads(const HeadStates& states, int64_t token, int64_t head_size,
                        const PagedStates& cache, int64_t block, int64_t offset) {
  int64_t at = block * cache.block_stride + offset * cache.token_stride;
  with_element(states.type, [&](auto element) {
    using Element = decltype(element);
    for_heads<Element>(states, token, [&](const typename Element::Stored* head) {
      write_head<Element>(head, states.type, cache, at, head_size);
      at += cache.head_stride;
    });
  });
}

// Range over the tokens.
inline void qk_norm_rotary_write_kv_cache(const QkNormRotaryWriteKvCacheArgs& args, int64_t begin,
                                          int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    if (args.normed) {
      norm_heads(args.query_norm, args.rotary.query, token);
      norm_heads(args.key_norm, args.rotary.key, token);
    }
    turn_token(args.rotary, token);
    if (token >= args.slots || args.slot_mapping[token] < 0) continue;
    const int64_t slot = args.slot_mapping[token];
    const int64_t block = slot / args.block_size;
    const int64_t offset = slot - block * args.block_size;
    write_heads(args.rotary.key, token, args.head_size, args.key_cache, block, offset);
    write_heads(args.value, token, args.value_head_size, args.value_cache, block, offset);
  }
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
