// SPDX-License-Identifier: Apache-2.0
//
// Attention whose ranges of keys are split at fixed places: the same bits, whatever is computed
// beside a row, once per table.
#include "attention_call.h"
#include "every_table.h"

namespace anvil::kernels {
namespace {

class AttentionSplits : public EveryTable {};
ANVIL_TEST_EVERY_TABLE(AttentionSplits);

TEST_P(AttentionSplits, GiveTheSameBitsForAnyWorkers) {
  for (ElementType type : kTypes) {
    for (int64_t split : {64, 256, 1024}) {
      const Layer layer = {
          .type = type, .cache = as_cache_type(type), .heads = 6, .window = split == 256 ? 600 : 0};
      AttentionCall call(layer, kLongAndShort);
      call.args.fixed_split = split;
      const std::vector<char> first = call.run(table());
      call.expect_right(name_of(layer) + ", split after " + std::to_string(split));
      for (int64_t workers : {2, 3, 8}) {
        for (Order order : {Order::kForward, Order::kBackward, Order::kOneCall, Order::kThreads}) {
          EXPECT_EQ(call.run(table(), workers, order), first)
              << name_of(layer) << ", split after " << split << ", " << workers << " workers";
        }
      }
    }
  }
}

TEST_P(AttentionSplits, GiveARequestTheSameBitsInAnyBatch) {
  for (ElementType type : kTypes) {
    const Layer layer = {.type = type, .cache = as_cache_type(type), .heads = 6};
    AttentionCall call(layer, kLongAndShort);
    call.args.fixed_split = 256;
    for (int64_t workers : {1, 2, 5}) {
      const std::vector<char> together = call.run(table(), workers);
      for (int64_t request = 0; request < call.args.num_requests; ++request) {
        const std::vector<char> alone = call.run_alone(table(), request, 2);
        EXPECT_EQ(call.part_of(request, together), call.part_of(request, alone))
            << name_of(layer) << ", request " << request << ", " << workers << " workers";
      }
    }
  }
}

// Whether it was decoded or is one of a prompt's: few rows and tiles of every width.
TEST_P(AttentionSplits, GiveARowTheSameBitsAmongAnyNumberOfRows) {
  for (ElementType type : kTypes) {
    for (CacheType cache : {as_cache_type(type), CacheType::kBf16, CacheType::kE4m3}) {
      for (int options = 0; options < 4; ++options) {
        const bool odd = (options & 1) != 0, more = (options & 2) != 0;
        const Layer layer = {.type = type,
                             .cache = cache,
                             .heads = odd ? 6 : 2,
                             .head_size = odd ? 40 : 64,
                             .value_size = odd ? 24 : 64,
                             .window = more ? 101 : 0,
                             .soft_cap = more && odd ? 2.0f : 0.0f,
                             .slopes = more && odd};
        AttentionCall call(layer, {{50, 330}});
        call.args.fixed_split = 128;
        const std::vector<char> together = call.run(table(), 2);
        for (int64_t count : {1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 16, 17, 24, 25, 32, 33, 49}) {
          for (int64_t begin : {int64_t{0}, 50 - count}) {
            const std::vector<char> found = call.run_rows(table(), 0, begin, begin + count, 1);
            EXPECT_TRUE(call.rows_of(0, begin, begin + count, found) ==
                        call.rows_of(0, begin, begin + count, together))
                << name_of(layer) << ", window " << layer.window << ", rows " << begin << " to "
                << begin + count;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace anvil::kernels
