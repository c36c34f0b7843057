// SPDX-License-Identifier: Apache-2.0
//
// Keys and values where they lie in a paged cache, and copies of them in the form that products
// take: converted, padded with zeros, and zero where a key is not to be read.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "attention/products-inl.h"
#include "attention/query_rows-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

inline int64_t bytes_of(CacheType type) {
  switch (type) {
    case CacheType::kFloat32:
      return 4;
    case CacheType::kBf16:
    case CacheType::kFp16:
      return 2;
    default:
      return 1;
  }
}

// One side of the cache, for one head of a request.
struct CacheRows {
  const char* data;                    // of the head in block 0
  int64_t block_stride, token_stride;  // bytes
  const int32_t* blocks;
  int64_t block_size;
  CacheType type;

  CacheRows(const QueryRows& rows, const PagedRows& side)
      : data(static_cast<const char*>(side.data) +
             rows.kv_head * side.head_stride * bytes_of(rows.args.cache_type)),
        block_stride(side.block_stride * bytes_of(rows.args.cache_type)),
        token_stride(side.token_stride * bytes_of(rows.args.cache_type)),
        blocks(rows.args.block_table + rows.request * rows.args.block_table_stride),
        block_size(rows.args.block_size),
        type(rows.args.cache_type) {}

  const char* row(int64_t key) const {
    // Keys are below 2^31, and dividing 32 bits takes half as long.
    const auto number = static_cast<uint32_t>(key), size = static_cast<uint32_t>(block_size);
    return data + blocks[number / size] * block_stride + number % size * token_stride;
  }
};

// Calls body(element) with the type of a cache's elements, for the types whose numbers products of
// `Product` hold exactly.
template <typename Product, typename Body>
inline void with_cache_element_of(CacheType type, const Body& body) {
  with_cache_element(type, [&](auto element) {
    if constexpr (Product::template kHolds<decltype(element)>) body(element);
  });
}

// Calls body(key, row, count) for the rows of the keys [begin, end), block by block: `count` rows
// from `row` on are token_stride apart.
template <typename Body>
inline void for_cache_blocks(const CacheRows& cache, int64_t begin, int64_t end, const Body& body) {
  for (int64_t key = begin; key < end;) {
    const int64_t left =
        cache.block_size - static_cast<uint32_t>(key) % static_cast<uint32_t>(cache.block_size);
    const int64_t count = smaller(left, end - key);
    body(key, cache.row(key), count);
    key += count;
  }
}

// Copies rows of the keys [key, key + count), those of [begin, end) from the cache, and zeros for
// the others. `size` is that of a row in the cache, `columns` that of a copy.
template <typename Product>
inline void copy_cache_rows(const CacheRows& cache, int64_t key, int64_t count, int64_t begin,
                            int64_t end, int64_t size, typename Product::Stored* to,
                            int64_t columns) {
  begin = smaller(larger(begin, key), key + count);
  end = larger(smaller(end, key + count), begin);
  const auto clear = [&](int64_t from, int64_t upto) {
    for (int64_t i = from; i < upto; ++i) to[i] = 0;
  };
  clear(0, (begin - key) * columns);
  clear((end - key) * columns, count * columns);
  with_cache_element_of<Product>(cache.type, [&](auto element) {
    using From = decltype(element);
    for_cache_blocks(cache, begin, end, [&](int64_t first, const char* row, int64_t rows) {
      for (int64_t i = first - key; i < first - key + rows; ++i, row += cache.token_stride) {
        Product::template convert<From>(reinterpret_cast<const typename From::Stored*>(row), size,
                                        to + i * columns);
        if (size < columns) clear(i * columns + size, (i + 1) * columns);
      }
    });
  });
}

// Whether products can take rows where they lie: their type and padding are those of copies.
template <typename Product>
inline bool in_place(const CacheRows& cache, int64_t size, int64_t columns) {
  return cache.type == Product::kCacheType && size == columns;
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
