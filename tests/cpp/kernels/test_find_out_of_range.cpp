// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <vector>

#include "every_table.h"

namespace anvil::kernels {
namespace {

class FindOutOfRange : public EveryTable {};
ANVIL_TEST_EVERY_TABLE(FindOutOfRange);

TEST_P(FindOutOfRange, NothingToFind) {
  EXPECT_EQ(table().find_out_of_range(nullptr, 0, 1, 0, 1), -1);
  const std::vector<int64_t> values(1500, 7);
  EXPECT_EQ(table().find_out_of_range(values.data(), 1500, 1, 7, 8), -1);
}

TEST_P(FindOutOfRange, FirstOfEveryPlace) {
  for (int64_t count : {1, 2, 7, 8, 9, 63, 511, 512, 513, 1024, 1100}) {
    for (int64_t bad : {int64_t{0}, count / 2, count - 1}) {
      for (int64_t value : {int64_t{-1}, int64_t{10}, std::numeric_limits<int64_t>::min(),
                            std::numeric_limits<int64_t>::max()}) {
        std::vector<int64_t> values(count, 9);
        values[bad] = values[count - 1] = value;
        EXPECT_EQ(table().find_out_of_range(values.data(), count, 1, 0, 10), bad);
      }
    }
  }
}

TEST_P(FindOutOfRange, StrideSkipsTheOthers) {
  std::vector<int64_t> pairs(2 * 600);
  for (int64_t i = 0; i < 600; ++i) pairs[2 * i] = 5, pairs[2 * i + 1] = 50;
  EXPECT_EQ(table().find_out_of_range(pairs.data(), 600, 2, 0, 6), -1);
  EXPECT_EQ(table().find_out_of_range(pairs.data() + 1, 600, 2, 0, 51), -1);
  pairs[2 * 599 + 1] = 51;
  EXPECT_EQ(table().find_out_of_range(pairs.data() + 1, 600, 2, 0, 51), 599);
}

TEST_P(FindOutOfRange, OneSided) {
  const std::vector<int64_t> slots = {-1, std::numeric_limits<int64_t>::min(), 63, 64};
  EXPECT_EQ(table().find_out_of_range(slots.data(), 4, 1, std::numeric_limits<int64_t>::min(), 64),
            3);
}

TEST_P(FindOutOfRange, BoundsBeyondTheValuesOwnRange) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kGreatest = std::numeric_limits<int64_t>::max();
  const std::vector<int32_t> values = {5, std::numeric_limits<int32_t>::max(),
                                       std::numeric_limits<int32_t>::min()};
  const auto find = [&](int64_t low, int64_t high) {
    return table().find_out_of_range_int32(values.data(), 3, 1, low, high);
  };
  EXPECT_EQ(find(kLeast, kGreatest), -1);
  EXPECT_EQ(find(0, kGreatest), 2);
  EXPECT_EQ(find(kLeast, 1000), 1);
  EXPECT_EQ(find(int64_t{1} << 31, kGreatest), 0);
  EXPECT_EQ(find(kLeast, -(int64_t{1} << 31)), 0);
  EXPECT_EQ(find(5, 5), 0);
  EXPECT_EQ(table().find_out_of_range_int32(values.data(), 0, 1, 5, 5), -1);
  const int64_t wide = 5;
  EXPECT_EQ(table().find_out_of_range(&wide, 1, 1, 5, kLeast), 0);
  EXPECT_EQ(table().find_out_of_range(&wide, 1, 1, kLeast, kGreatest), -1);
}

TEST_P(FindOutOfRange, FirstOfEveryPlaceOf32Bits) {
  for (int64_t count : {1, 8, 17, 512, 513, 1100}) {
    for (int64_t bad : {int64_t{0}, count / 2, count - 1}) {
      for (int32_t value : {-1, 10}) {
        std::vector<int32_t> values(2 * count, 9);
        values[2 * bad] = values[2 * (count - 1)] = value;
        EXPECT_EQ(table().find_out_of_range_int32(values.data(), count, 2, 0, 10), bad);
        EXPECT_EQ(table().find_out_of_range_int32(values.data(), 2 * count, 1, 0, 10), 2 * bad);
      }
    }
  }
}

}  // namespace
}  // namespace anvil::kernels
