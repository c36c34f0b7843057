// SPDX-License-Identifier: Apache-2.0
#include <random>
#include <vector>

#include "every_table.h"

namespace anvil::kernels {
namespace {

constexpr int64_t kUntouched = -77;

// A batch of requests of the given numbers of new tokens, at random positions.
struct Batch {
  std::vector<int32_t> query_start_loc = {0};
  std::vector<int64_t> positions;
  std::vector<int32_t> block_table;
  std::vector<int64_t> slots;
  SlotMappingArgs args = {};

  Batch(const std::vector<int>& lengths, int64_t block_size, int64_t world, int64_t rank,
        int64_t interleave, int64_t padding) {
    std::mt19937 random(static_cast<unsigned>(block_size * 1000 + world * 10 + rank));
    constexpr int64_t kWidth = 70, kRowStride = 73;
    const int64_t longest = kWidth * block_size * world;
    for (int length : lengths) {
      query_start_loc.push_back(query_start_loc.back() + length);
      // The last possible token comes up too, so that the end of a row is read.
      const int64_t start =
          positions.empty() ? longest - length : random() % (longest - length + 1);
      for (int i = 0; i < length; ++i) positions.push_back(start + i);
    }
    block_table.resize(lengths.size() * kRowStride, -1);
    for (size_t r = 0; r < lengths.size(); ++r) {
      for (int64_t b = 0; b < kWidth; ++b) {
        // Large numbers: slots exceed 32 bits.
        block_table[r * kRowStride + b] = static_cast<int32_t>(random() % 2'000'000'000);
      }
    }
    slots.assign(positions.size() + padding, kUntouched);
    args = {.query_start_loc = query_start_loc.data(),
            .positions = positions.data(),
            .block_table = block_table.data(),
            .slot_mapping = slots.data(),
            .block_table_stride = kRowStride,
            .num_requests = static_cast<int64_t>(lengths.size()),
            .num_tokens = static_cast<int64_t>(positions.size()),
            .block_size = block_size,
            .cp_world_size = world,
            .cp_rank = rank,
            .cp_interleave = interleave,
            .pad_id = -1};
  }

  // Written from the definition: ranks take turns of `interleave` positions, and a rank stores its
  // own positions of a virtual block one after the other.
  std::vector<int64_t> expected() const {
    std::vector<int64_t> result(slots.size(), args.pad_id);
    for (int64_t r = 0; r < args.num_requests; ++r) {
      for (int64_t t = query_start_loc[r]; t < query_start_loc[r + 1]; ++t) {
        const int64_t virtual_size = args.block_size * args.cp_world_size;
        const int64_t virtual_block = positions[t] / virtual_size;
        int64_t local = 0;
        for (int64_t p = virtual_block * virtual_size; p < positions[t]; ++p) local += owns(p);
        if (owns(positions[t])) {
          result[t] =
              int64_t{block_table[r * args.block_table_stride + virtual_block]} * args.block_size +
              local;
        }
      }
    }
    return result;
  }

  bool owns(int64_t position) const {
    return position / args.cp_interleave % args.cp_world_size == args.cp_rank;
  }
};

class ComputeSlotMapping : public EveryTable {};
ANVIL_TEST_EVERY_TABLE(ComputeSlotMapping);

TEST_P(ComputeSlotMapping, MatchesTheDefinition) {
  const std::vector<int> lengths = {1, 17, 0, 64, 1, 33, 5};
  for (int64_t block_size : {1, 2, 12, 16, 48, 128}) {
    Batch batch(lengths, block_size, 1, 0, 1, 9);
    table().compute_slot_mapping(batch.args, 0, static_cast<int64_t>(batch.slots.size()));
    EXPECT_EQ(batch.slots, batch.expected()) << "block_size " << block_size;
  }
}

TEST_P(ComputeSlotMapping, ContextParallelRanksShareEachRequest) {
  for (int64_t world : {2, 3, 4}) {
    for (int64_t interleave : {1, 4, 12}) {
      for (int64_t rank = 0; rank < world; ++rank) {
        Batch batch({40, 3, 31}, 12, world, rank, interleave, 5);
        table().compute_slot_mapping(batch.args, 0, static_cast<int64_t>(batch.slots.size()));
        EXPECT_EQ(batch.slots, batch.expected()) << world << " ranks, interleave " << interleave;
      }
    }
  }
}

TEST_P(ComputeSlotMapping, AnySplitOfTheRangeGivesTheSame) {
  for (int64_t split : {0, 1, 16, 17, 18, 50, 82, 83, 90}) {
    Batch batch({1, 17, 64, 1}, 16, 1, 0, 1, 7);
    const int64_t end = static_cast<int64_t>(batch.slots.size());
    table().compute_slot_mapping(batch.args, split, end);
    for (int64_t t = 0; t < split; ++t) EXPECT_EQ(batch.slots[t], kUntouched);
    table().compute_slot_mapping(batch.args, 0, split);
    EXPECT_EQ(batch.slots, batch.expected()) << "split at " << split;
  }
}

TEST_P(ComputeSlotMapping, TokensOfNoRequestKeepTheirSlot) {
  Batch batch({4, 4}, 16, 1, 0, 1, 2);
  batch.query_start_loc = {1, 4, 6};
  batch.args.query_start_loc = batch.query_start_loc.data();
  table().compute_slot_mapping(batch.args, 0, 10);
  std::vector<int64_t> expected = batch.expected();
  for (int64_t t : {0, 6, 7}) expected[t] = kUntouched;
  EXPECT_EQ(batch.slots, expected);
}

}  // namespace
}  // namespace anvil::kernels
