// SPDX-License-Identifier: Apache-2.0
//
// Chunks of keys, which heads take turns over: where they lie, and asking for those that come next.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "attention/cache_rows-inl.h"
#include "attention/few_rows_products-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Bytes of a chunk, of which the first cache holds two: rows of keys may be read once per query
// row.
constexpr int64_t kChunkBytes = 16 << 10;

// How many groups a chunk has, at most; so many bytes a key has with its value.
inline int64_t groups_of_chunk(int64_t bytes) {
  return larger(1, smaller(kChunkGroups, kChunkBytes / (kGroupKeys * bytes)));
}

// Where a chunk's groups of keys begin in the cache: bytes from the first head's rows in block 0.
struct ChunkPlace {
  int64_t begin, num_groups;
  int64_t keys[kChunkGroups], values[kChunkGroups];
};

// The chunk of at most `groups` groups from `key` on. Groups are looked up by their first key: they
// are read by it where they lie in one block.
inline ChunkPlace place_chunk(const CacheRows& keys, const CacheRows& values, int64_t key,
                              int64_t groups, int64_t key_end) {
  ChunkPlace place;
  place.begin = key;
  place.num_groups = smaller(groups, (key_end - key + kGroupKeys - 1) / kGroupKeys);
  for (int64_t g = 0; g < place.num_groups; ++g) {
    place.keys[g] = keys.row(key + g * kGroupKeys) - keys.data;
    place.values[g] = values.row(key + g * kGroupKeys) - values.data;
  }
  return place;
}

// Asks for a row of a cache, into the second cache: the first one has no room for as many requests
// under way as memory needs to be kept busy. Always inline: to the compiler a function that only
// prefetches has no effect, and it drops the calls.
[[gnu::always_inline]] inline void prefetch_row(const char* row, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(row + b, 0, 2);
}

// The chunk that comes next, of one head, whose rows are asked for little by little.
struct NextChunk {
  const ChunkPlace& place;
  const char *keys, *values;  // of the head in block 0
  int64_t key_stride, value_stride, key_bytes, value_bytes;
  int64_t rows;   // 0: they are not asked for
  int64_t steps;  // after how many calls all have been
  int64_t step = 0, row = 0;

  [[gnu::always_inline]] void prefetch() {
    ++step;
    for (; row * steps < rows * step; ++row) {
      const int64_t group = row / kGroupKeys, i = row % kGroupKeys;
      prefetch_row(keys + place.keys[group] + i * key_stride, key_bytes);
      prefetch_row(values + place.values[group] + i * value_stride, value_bytes);
    }
  }
};

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
