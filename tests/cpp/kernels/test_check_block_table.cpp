// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "every_table.h"

namespace anvil::kernels {
namespace {

// Five requests, the third of them padding: of its row and length nothing makes sense.
struct Batch {
  static constexpr int64_t kRequests = 5, kBlocks = 700, kStride = kBlocks + 3;
  std::vector<int32_t> table = std::vector<int32_t>(kRequests * kStride, 1 << 30);
  std::vector<int32_t> starts = {0, 1, 5, 5, 6, 13};
  std::vector<int32_t> lengths = {1, 16 * kBlocks, -5, 33, 0};

  Batch() {
    for (int64_t i = 0; i < kBlocks; ++i) table[kStride + i] = static_cast<int32_t>(i % 100);
    table[0] = 0;
    table[3 * kStride] = 99, table[3 * kStride + 1] = 4, table[3 * kStride + 2] = 4;
  }

  std::vector<int64_t> fault(const KernelTable& kernels, int64_t begin = 0,
                             int64_t end = kRequests) const {
    const BlockTableFault found = kernels.check_block_table(
        {table.data(), kStride, starts.data(), lengths.data(), kBlocks, 16, 100}, begin, end);
    return {found.request, found.index};
  }
};

class CheckBlockTable : public EveryTable {};
ANVIL_TEST_EVERY_TABLE(CheckBlockTable);

TEST_P(CheckBlockTable, LooksAtNothingThatIsNotUsed) {
  EXPECT_EQ(Batch().fault(table()), (std::vector<int64_t>{-1, -1}));
}

TEST_P(CheckBlockTable, FindsTheFirstEntryOutside) {
  for (int64_t index : {0, 1, 15, 16, 511, 512, 699}) {
    for (int32_t value : {100, -1, INT32_MIN, INT32_MAX}) {
      Batch batch;
      batch.table[Batch::kStride + index] = value;
      batch.table[3 * Batch::kStride + 2] = value;
      EXPECT_EQ(batch.fault(table()), (std::vector<int64_t>{1, index})) << value;
      EXPECT_EQ(batch.fault(table(), 2, 5), (std::vector<int64_t>{3, 2})) << value;
      EXPECT_EQ(batch.fault(table(), 0, 1), (std::vector<int64_t>{-1, -1})) << value;
    }
  }
}

TEST_P(CheckBlockTable, LengthsEndWithinABlock) {
  Batch batch;
  batch.table[3 * Batch::kStride + 2] = 100;
  batch.lengths[3] = 32;  // two blocks to the last token
  EXPECT_EQ(batch.fault(table()), (std::vector<int64_t>{-1, -1}));
  batch.lengths[3] = 33;
  EXPECT_EQ(batch.fault(table()), (std::vector<int64_t>{3, 2}));
}

TEST_P(CheckBlockTable, FindsLengthsThatNoRowHolds) {
  for (int32_t length : {16 * 700 + 1, INT32_MAX, -1, INT32_MIN}) {
    Batch batch;
    batch.lengths[4] = length;
    EXPECT_EQ(batch.fault(table()), (std::vector<int64_t>{4, -1})) << length;
  }
}

}  // namespace
}  // namespace anvil::kernels
