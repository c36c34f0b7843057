// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "every_table.h"

namespace anvil::kernels {
namespace {

std::vector<char> numbered(int64_t count, int seed) {
  std::vector<char> bytes(count);
  for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 37 + seed);
  return bytes;
}

class CopyBlocks : public EveryTable {};
ANVIL_TEST_EVERY_TABLE(CopyBlocks);

TEST_P(CopyBlocks, BetweenCachesOfDifferentStride) {
  for (int64_t bytes : {1, 5, 31, 64, 100, 256, 1000}) {
    const int64_t source_stride = bytes + 3, destination_stride = bytes + 11;
    const std::vector<char> source = numbered(4 * source_stride, 1);
    std::vector<char> destination = numbered(5 * destination_stride, 2);
    std::vector<char> expected = destination;
    const std::vector<int64_t> pairs = {3, 0, 0, 4, 3, 2};
    for (size_t p = 0; p < pairs.size(); p += 2) {
      for (int64_t i = 0; i < bytes; ++i) {
        expected[pairs[p + 1] * destination_stride + i] = source[pairs[p] * source_stride + i];
      }
    }
    table().copy_blocks({source.data(), destination.data(), source_stride, destination_stride,
                         bytes, pairs.data(), 3},
                        0, bytes);
    EXPECT_EQ(destination, expected) << bytes << " bytes";
  }
}

TEST_P(CopyBlocks, ChainsGiveTheSameHoweverTheRangeIsSplit) {
  // 0 to 1, 1 to 2, 2 to itself, 3 to 0: block 2 ends as block 0 began.
  const std::vector<int64_t> pairs = {0, 1, 1, 2, 2, 2, 3, 0};
  constexpr int64_t kBytes = 200;
  const std::vector<char> before = numbered(4 * kBytes, 3);
  std::vector<char> expected = before;
  for (int64_t i = 0; i < kBytes; ++i) {
    expected[kBytes + i] = expected[2 * kBytes + i] = before[i];
    expected[i] = before[3 * kBytes + i];
  }
  for (int64_t split : {0, 1, 63, 64, 100, 199, 200}) {
    std::vector<char> cache = before;
    const CopyBlocksArgs args = {cache.data(), cache.data(), kBytes, kBytes,
                                 kBytes,       pairs.data(), 4};
    table().copy_blocks(args, split, kBytes);
    table().copy_blocks(args, 0, split);
    EXPECT_EQ(cache, expected) << "split at " << split;
  }
}

}  // namespace
}  // namespace anvil::kernels
