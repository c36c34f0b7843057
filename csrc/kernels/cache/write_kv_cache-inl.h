// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cache/cache_args.h"
#include "vec/bytes-inl.h"
#include "vec/cache_elements-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

inline const char* source_of(const CacheScatter& tensor, int64_t token) {
  return tensor.source + token * tensor.source_token_stride;
}

inline char* place_of(const CacheScatter& tensor, int64_t block, int64_t offset) {
  return tensor.cache + block * tensor.cache_block_stride + offset * tensor.cache_token_stride;
}

using ScatterToken = void(const CacheScatter& tensor, int64_t token, int64_t block, int64_t offset);

inline void copy_token(const CacheScatter& tensor, int64_t token, int64_t block, int64_t offset) {
  const char* from = source_of(tensor, token);
  char* to = place_of(tensor, block, offset);
  for (int64_t run = 0; run < tensor.runs; ++run) {
    copy_bytes(to + run * tensor.cache_run_stride, from + run * tensor.source_run_stride,
               tensor.run_bytes);
  }
}

template <typename From, typename To>
inline void convert_token(const CacheScatter& tensor, int64_t token, int64_t block,
                          int64_t offset) {
  const Floats scale = Floats::all(tensor.scale);
  const char* source = source_of(tensor, token);
  char* place = place_of(tensor, block, offset);
  for (int64_t run = 0; run < tensor.runs; ++run) {
    const auto* from = reinterpret_cast<const typename From::Stored*>(source);
    auto* to = reinterpret_cast<typename To::Stored*>(place);
    for_registers(tensor.run_elements, [&](int64_t i, auto part) {
      To::store(From::load(from + i, part) / scale, to + i, part);
    });
    source += tensor.source_run_stride;
    place += tensor.cache_run_stride;
  }
}

inline ScatterToken* scatter_token(const CacheScatter& tensor) {
  ScatterToken* chosen = copy_token;
  if (tensor.converts) {
    with_element(tensor.source_type, [&](auto from) {
      with_cache_element(tensor.cache_type,
                         [&](auto to) { chosen = convert_token<decltype(from), decltype(to)>; });
    });
  }
  return chosen;
}

inline void write_kv_cache(const WriteKvCacheArgs& args, int64_t begin, int64_t end) {
  ScatterToken* const key = scatter_token(args.key);
  ScatterToken* const value = scatter_token(args.value);
  for (int64_t token = begin; token < end; ++token) {
    const int64_t slot = args.slot_mapping[token];
    if (slot < 0) continue;
    const int64_t block = slot / args.block_size;
    const int64_t offset = slot - block * args.block_size;
    key(args.key, token, block, offset);
    value(args.value, token, block, offset);
  }
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
