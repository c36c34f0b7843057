// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string>
#include <vector>

#include "cache_numbers.h"
#include "every_table.h"
#include "guarded_memory.h"

namespace anvil::kernels {
namespace {

constexpr char kUntouched = 0x5a;

// One side (keys or values): a source of distinct bytes with gaps between its rows and runs, and a
// cache whose blocks, tokens and runs have gaps too, so that a stray write shows.
struct Side {
  std::vector<char> source, cache;
  CacheScatter scatter = {};

  Side(int64_t tokens, int64_t blocks, int64_t block_size, int64_t runs, int64_t run_bytes,
       bool heads_outside_tokens, int seed) {
    const int64_t run_stride = run_bytes + 3, token_stride = runs * run_stride + 5;
    source.resize(tokens * token_stride + 1);
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i * 31 + seed);
    const int64_t cache_run = run_bytes + 2;
    const int64_t inner = heads_outside_tokens ? block_size * cache_run : cache_run;
    const int64_t outer = heads_outside_tokens ? cache_run : runs * cache_run;
    const int64_t block_stride = block_size * runs * cache_run + 7;
    cache.assign(blocks * block_stride + 1, kUntouched);
    scatter = {.source = source.data() + 1,  // nothing is aligned
               .cache = cache.data() + 1,
               .source_token_stride = token_stride,
               .source_run_stride = run_stride,
               .cache_block_stride = block_stride,
               .cache_token_stride = outer,
               .cache_run_stride = inner,
               .runs = runs,
               .run_bytes = run_bytes};
  }

  // The cache after writing, byte by byte.
  std::vector<char> expected(const std::vector<int64_t>& slots, int64_t block_size) const {
    std::vector<char> result(cache.size(), kUntouched);
    for (size_t t = 0; t < slots.size(); ++t) {
      if (slots[t] < 0) continue;
      for (int64_t run = 0; run < scatter.runs; ++run) {
        for (int64_t i = 0; i < scatter.run_bytes; ++i) {
          result[1 + slots[t] / block_size * scatter.cache_block_stride +
                 slots[t] % block_size * scatter.cache_token_stride +
                 run * scatter.cache_run_stride + i] =
              source[1 + t * scatter.source_token_stride + run * scatter.source_run_stride + i];
        }
      }
    }
    return result;
  }
};

bool is_nan(const char* element, CacheType type) {
  uint32_t bits = 0;
  switch (type) {
    case CacheType::kFloat32:
      std::memcpy(&bits, element, 4);
      return (bits & 0x7fffffff) > 0x7f800000;
    case CacheType::kBf16:
      std::memcpy(&bits, element, 2);
      return (bits & 0x7fff) > 0x7f80;
    case CacheType::kFp16:
      std::memcpy(&bits, element, 2);
      return (bits & 0x7fff) > 0x7c00;
    case CacheType::kE4m3:
      return (*element & 0x7f) == 0x7f;
    case CacheType::kE5m2:
      return (*element & 0x7f) > 0x7c;
    case CacheType::kInt8:
      return false;
  }
  return false;
}

class WriteKvCache : public EveryTable {};
ANVIL_TEST_EVERY_TABLE(WriteKvCache);

TEST_P(WriteKvCache, WritesEachRunAndNothingElse) {
  // First and last slot of the cache, a block's first and last token, and tokens to skip.
  const std::vector<int64_t> slots = {0, 19, -1, 4, 5, 7, -1, 13, -9};
  const int64_t tokens = static_cast<int64_t>(slots.size());
  for (int64_t run_bytes : {1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 96, 128, 200, 256, 300, 515}) {
    for (int64_t runs : {1, 3}) {
      for (bool heads_outside_tokens : {false, true}) {
        Side key(tokens, 4, 5, runs, run_bytes, heads_outside_tokens, 1);
        Side value(tokens, 4, 5, runs, run_bytes / 2 + 1, heads_outside_tokens, 2);
        const WriteKvCacheArgs args = {key.scatter, value.scatter, slots.data(), 5};
        table().write_kv_cache(args, 0, tokens);
        EXPECT_EQ(key.cache, key.expected(slots, 5)) << run_bytes << " bytes, runs " << runs;
        EXPECT_EQ(value.cache, value.expected(slots, 5)) << run_bytes << " bytes, runs " << runs;
      }
    }
  }
}

TEST_P(WriteKvCache, WritesItsRangeOnly) {
  std::vector<int64_t> slots = {3, 2, 1, 0, 6};
  Side key(5, 2, 4, 2, 64, false, 1), value(5, 2, 4, 2, 64, false, 2);
  const WriteKvCacheArgs args = {key.scatter, value.scatter, slots.data(), 4};
  table().write_kv_cache(args, 1, 1);
  EXPECT_EQ(key.cache, key.expected({}, 4));
  table().write_kv_cache(args, 1, 4);
  EXPECT_EQ(key.cache, key.expected({-1, 2, 1, 0, -1}, 4));
  EXPECT_EQ(value.cache, value.expected({-1, 2, 1, 0, -1}, 4));
}

// Elements that are converted: every table writes what the scalar one writes, bit by bit, and
// nothing beside it.
TEST_P(WriteKvCache, ConvertsLikeTheScalarTable) {
  const std::vector<int64_t> slots = {3, -1, 0, 7};
  const int64_t tokens = 4, runs = 2, run_elements = 45;
  for (ElementType from : {ElementType::kFloat32, ElementType::kBf16, ElementType::kFp16}) {
    const int64_t from_bytes = from == ElementType::kFloat32 ? 4 : 2;
    // Any bits: numbers of all sizes, infinities and NaN.
    std::vector<char> source(tokens * runs * run_elements * from_bytes);
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i * i * 37 + i * 11);
    for (CacheType to : {CacheType::kFloat32, CacheType::kBf16, CacheType::kFp16, CacheType::kE4m3,
                         CacheType::kE5m2, CacheType::kInt8}) {
      const int64_t to_bytes = to == CacheType::kFloat32                          ? 4
                               : to == CacheType::kBf16 || to == CacheType::kFp16 ? 2
                                                                                  : 1;
      const int64_t run_bytes = (run_elements + 3) * to_bytes;
      const auto written_by = [&](const KernelTable& table) {
        std::vector<char> cache(8 * runs * run_bytes + to_bytes, kUntouched);
        const CacheScatter scatter = {.source = source.data(),
                                      .cache = cache.data() + to_bytes,
                                      .source_token_stride = runs * run_elements * from_bytes,
                                      .source_run_stride = run_elements * from_bytes,
                                      .cache_block_stride = 4 * runs * run_bytes,
                                      .cache_token_stride = runs * run_bytes,
                                      .cache_run_stride = run_bytes,
                                      .runs = runs,
                                      .run_bytes = run_elements * from_bytes,
                                      .converts = true,
                                      .run_elements = run_elements,
                                      .source_type = from,
                                      .cache_type = to,
                                      .scale = 0.7f};
        table.write_kv_cache({scatter, scatter, slots.data(), 4}, 0, tokens);
        return cache;
      };
      const std::vector<char> actual = written_by(table()),
                              scalar = written_by(*table_for("scalar"));
      std::vector<int64_t> places;  // of written elements
      for (int64_t slot : {3, 0, 7}) {
        for (int64_t run = 0; run < runs; ++run) {
          for (int64_t i = 0; i < run_elements; ++i) {
            places.push_back(to_bytes + (slot * runs + run) * run_bytes + i * to_bytes);
          }
        }
      }
      std::vector<char> rest = actual;
      for (int64_t place : places) {
        // Of NaN only that it is one: tables quieten it in ways of their own.
        if (!is_nan(actual.data() + place, to) || !is_nan(scalar.data() + place, to)) {
          ASSERT_EQ(std::string(actual.data() + place, to_bytes),
                    std::string(scalar.data() + place, to_bytes))
              << "element " << place << " of cache type " << static_cast<int>(to);
        }
        for (int64_t i = 0; i < to_bytes; ++i) rest[place + i] = kUntouched;
      }
      ASSERT_EQ(rest, std::vector<char>(rest.size(), kUntouched));
    }
  }
}

// Both ends of the source and of the cache, whose rows lie next to each other.
TEST_P(WriteKvCache, TouchesNothingBeforeOrBehindItsTensors) {
  const std::vector<int64_t> slots = {11, 0, 4};
  constexpr int64_t kRuns = 2, kBlockSize = 4, kSlots = 12;
  for (int64_t elements : {1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 100}) {
    for (ElementType from : {ElementType::kFloat32, ElementType::kBf16, ElementType::kFp16}) {
      for (CacheType to : {CacheType::kFloat32, CacheType::kBf16, CacheType::kFp16,
                           CacheType::kE4m3, CacheType::kE5m2, CacheType::kInt8}) {
        for (Place place : kPlaces) {
          const int64_t from_run = elements * size_of(as_cache_type(from));
          const int64_t to_run = elements * size_of(to);
          GuardedMemory source(slots.size() * kRuns * from_run, place);
          GuardedMemory cache(kSlots * kRuns * to_run, place);
          std::memset(source.data(), 0, source.bytes());
          source.make_read_only();
          const CacheScatter side = {.source = source.data(),
                                     .cache = cache.data(),
                                     .source_token_stride = kRuns * from_run,
                                     .source_run_stride = from_run,
                                     .cache_block_stride = kBlockSize * kRuns * to_run,
                                     .cache_token_stride = kRuns * to_run,
                                     .cache_run_stride = to_run,
                                     .runs = kRuns,
                                     .run_bytes = from_run,
                                     .converts = to != as_cache_type(from),
                                     .run_elements = elements,
                                     .source_type = from,
                                     .cache_type = to,
                                     .scale = 1.0f};
          table().write_kv_cache({side, side, slots.data(), kBlockSize}, 0, 3);
          for (int64_t i = 0; i < kSlots * kRuns * to_run; ++i) {
            const int64_t slot = i / (kRuns * to_run);
            const bool written = slot == 0 || slot == 4 || slot == 11;
            ASSERT_EQ(cache.data()[i], written ? 0 : '\xff') << "slot " << slot;
          }
          EXPECT_TRUE(cache.surroundings_are_intact()) << elements << " elements";
        }
      }
    }
  }
}

}  // namespace
}  // namespace anvil::kernels
