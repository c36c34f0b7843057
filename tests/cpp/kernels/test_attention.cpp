// SPDX-License-Identifier: Apache-2.0
//
// Attention over a paged cache, once per table, between pages that cannot be touched.
#include "attention_call.h"
#include "every_table.h"

namespace anvil::kernels {
namespace {

constexpr CacheType kCacheTypes[] = {CacheType::kFloat32, CacheType::kBf16, CacheType::kFp16,
                                     CacheType::kE4m3,    CacheType::kE5m2, CacheType::kInt8};

class Attention : public EveryTable {
 protected:
  void check(const Layer& layer, const std::vector<Request>& requests, const Placing& placing = {},
             int64_t workers = 1) {
    AttentionCall call(layer, requests, placing);
    call.run(table(), workers);
    call.expect_right(name_of(layer) + ", cache " +
                      std::to_string(static_cast<int>(placing.cache)) + ", place " +
                      std::to_string(static_cast<int>(placing.place)));
  }
};
ANVIL_TEST_EVERY_TABLE(Attention);

// A decode, a chunk and a prompt.
const std::vector<Request> kMixed = {{1, 20}, {3, 37}, {9, 9}};

TEST_P(Attention, HeadSizesAroundVectorWidthsInEveryType) {
  for (ElementType type : kTypes) {
    for (CacheType cache : kCacheTypes) {
      for (int64_t size : {1, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 72, 129}) {
        for (Place place : kPlaces) {
          Layer layer = {.type = type, .cache = cache, .head_size = size, .value_size = size};
          check(layer, kMixed, {.place = place});
          layer.value_size = size % 7 + size / 2 + 1;
          check(layer, {{2, 19}}, {.place = place, .cache = CacheIs::kOne});
        }
      }
    }
  }
}

TEST_P(Attention, NoRowOfTheCacheIsLeft) {
  for (ElementType type : kTypes) {
    for (CacheType cache : kCacheTypes) {
      for (int64_t size : {1, 13, 16, 31, 64, 100}) {
        const Layer layer = {
            .type = type, .cache = cache, .head_size = size, .value_size = 65 - size / 2};
        check(layer, {{1, 21}, {50, 66}}, {.cache = CacheIs::kGuardedRows});
      }
    }
  }
}

TEST_P(Attention, NumbersOfRowsAndKeysAroundBlocksAndTiles) {
  for (ElementType type : kTypes) {
    for (int64_t rows : {1, 2, 5, 15, 16, 17, 47, 48, 49, 97}) {
      for (int64_t keys : {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200}) {
        const Layer layer = {.type = type,
                             .cache = as_cache_type(type),
                             .heads = 3,
                             .kv_heads = 1,
                             .head_size = 24,
                             .value_size = 20};
        check(layer, {{rows, keys + rows}, {rows, keys, false}}, {.cache = CacheIs::kTwo});
      }
    }
  }
}

TEST_P(Attention, HeadsGroupsAndBlockSizes) {
  for (ElementType type : kTypes) {
    for (int64_t block_size : {1, 2, 3, 16, 20, 48, 64, 128}) {
      for (auto [heads, kv_heads] :
           {std::pair<int64_t, int64_t>{1, 1}, {3, 3}, {9, 3}, {16, 1}, {10, 2}, {71, 1}}) {
        const Layer layer = {.type = type,
                             .cache = as_cache_type(type),
                             .heads = heads,
                             .kv_heads = kv_heads,
                             .head_size = 20,
                             .value_size = 12,
                             .block_size = block_size};
        check(layer, {{1, 131}, {6, 70}, {0, 5}}, {.cache = CacheIs::kOne, .heads_first = true});
      }
    }
  }
}

// Rows that are and are not computed together, over caches that are read where they lie and others.
TEST_P(Attention, RowsOfAHeadInEveryCache) {
  for (ElementType type : kTypes) {
    for (CacheType cache : kCacheTypes) {
      for (int64_t heads : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17, 23, 24, 25}) {
        for (auto [size, value_size] : {std::pair<int64_t, int64_t>{64, 64}, {96, 32}, {24, 64}}) {
          const Layer layer = {.type = type,
                               .cache = cache,
                               .heads = heads,
                               .kv_heads = 1,
                               .head_size = size,
                               .value_size = value_size};
          check(layer, {{1, 83}, {1, 50, false}, {1, 16}}, {.cache = CacheIs::kGuardedRows});
          check({.type = type,
                 .cache = cache,
                 .heads = 2 * heads,
                 .head_size = size,
                 .value_size = value_size,
                 .window = 45},
                {{1, 200}}, {.cache = CacheIs::kOne});
        }
      }
    }
  }
}

// Also factors of the logits that are not positive.
TEST_P(Attention, AnyScale) {
  for (ElementType type : kTypes) {
    for (float scale : {-0.3f, 0.0f, 0.2f}) {
      for (int64_t heads : {2, 8}) {
        const Layer layer = {
            .type = type, .cache = as_cache_type(type), .heads = heads, .kv_heads = 1};
        AttentionCall call(layer, {{1, 200}, {3, 70}, {20, 40}});
        call.args.scale = scale;
        call.run(table(), 2);
        call.expect_right(name_of(layer) + ", scale " + std::to_string(scale));
      }
    }
  }
}

TEST_P(Attention, LargeHeadsWhoseValuesArePartsOfTheirKeys) {
  for (ElementType type : kTypes) {
    for (CacheType cache : {as_cache_type(type), CacheType::kE4m3}) {
      for (Place place : kPlaces) {
        const Layer layer = {.type = type,
                             .cache = cache,
                             .heads = 16,
                             .kv_heads = 1,
                             .head_size = 576,
                             .value_size = 512};
        check(layer, {{1, 70}, {4, 9}}, {.place = place, .cache = CacheIs::kShared});
      }
    }
  }
}

TEST_P(Attention, EveryOptionAloneAndTogether) {
  for (ElementType type : kTypes) {
    for (int64_t window : {0, 1, 30, 100}) {
      for (int options = 0; options < 8; ++options) {
        const Layer layer = {.type = type,
                             .cache = as_cache_type(type),
                             .heads = 6,
                             .window = window,
                             .soft_cap = options & 1 ? 2.0f : 0.0f,
                             .slopes = (options & 2) != 0,
                             .sinks = (options & 4) != 0};
        check(layer, {{1, 150}, {49, 70}, {20, 140, false}, {1, 1}, {5, 5, false}}, {.padding = 2});
      }
    }
  }
}

TEST_P(Attention, RowsWithoutKeysAreZeroAndRequestsWithoutRowsAreSkipped) {
  for (ElementType type : kTypes) {
    for (bool sinks : {false, true}) {
      const Layer layer = {.type = type, .cache = as_cache_type(type), .sinks = sinks};
      for (Place place : kPlaces) {
        // More rows than keys, as over what an encoder made.
        check(layer, {{0, 3}, {5, 2}, {3, 0}, {0, 0}, {9, 4, false}, {0, 70}},
              {.place = place, .padding = 1}, 2);
        check(layer, {{3, 0}, {1, 0, false}}, {.place = place}, 3);
        check(layer, {{0, 4}, {0, 0}}, {.place = place, .padding = 3}, 2);
        check(layer, {{0, 4}}, {.place = place}, 2);
        check(layer, {}, {.place = place, .padding = 1}, 2);
      }
    }
  }
}

TEST_P(Attention, AnyNumberOfWorkersInAnyOrder) {
  for (ElementType type : kTypes) {
    const Layer layer = {.type = type, .cache = as_cache_type(type), .heads = 6, .head_size = 40};
    AttentionCall call(layer, kLongAndShort);
    for (int64_t workers : {1, 2, 3, 8, 61}) {
      for (Order order : {Order::kForward, Order::kBackward, Order::kOneCall, Order::kThreads}) {
        call.run(table(), workers, order);
        call.expect_right(name_of(layer) + ", " + std::to_string(workers) + " workers, order " +
                          std::to_string(static_cast<int>(order)));
      }
    }
  }
}

TEST_P(Attention, OffsetsBeyond32Bits) {
  for (ElementType type : kTypes) {
    for (CacheType cache : {as_cache_type(type), CacheType::kE4m3}) {
      for (int64_t split : {0, 128}) {
        const Layer layer = {.type = type, .cache = cache, .block_size = 64};
        AttentionCall call(layer, {{1, 250}, {20, 180}, {1, 3}}, {.cache = CacheIs::kFar});
        call.args.fixed_split = split;
        call.run(table(), 2);
        call.expect_right(name_of(layer) + ", far apart");
      }
    }
  }
}

}  // namespace
}  // namespace anvil::kernels
