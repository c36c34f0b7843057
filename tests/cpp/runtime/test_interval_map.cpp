// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <utility>
#include <vector>

#include "interval_map.h"

namespace anvil::sanitizer {
namespace {

constexpr uintptr_t kBytes = 64;

std::array<int, kBytes> Values(const IntervalMap<int>& map) {
  std::array<int, kBytes> values{};
  map.ForEach(0, kBytes, [&](uintptr_t begin, uintptr_t end, int value) {
    for (uintptr_t at = begin; at < end; ++at) values[at] = value;
  });
  return values;
}

// How many ranges a map needs at least: runs of equal values other than 0.
size_t Runs(const std::array<int, kBytes>& values) {
  size_t runs = 0;
  for (size_t at = 0; at < kBytes; ++at) {
    if (values[at] != 0 && (at == 0 || values[at - 1] != values[at])) ++runs;
  }
  return runs;
}

TEST(IntervalMap, UpdateVisitsPiecesAndGapsInOrder) {
  IntervalMap<int> map;
  map.Assign(10, 20, 1);
  map.Assign(30, 40, 2);
  std::vector<std::array<uintptr_t, 3>> visits;
  map.Update(15, 50, [&](uintptr_t begin, uintptr_t end, int& value) {
    visits.push_back({begin, end, static_cast<uintptr_t>(value)});
    value = 7;
  });
  const std::vector<std::array<uintptr_t, 3>> expected = {
      {15, 20, 1}, {20, 30, 0}, {30, 40, 2}, {40, 50, 0}};
  EXPECT_EQ(visits, expected);
  EXPECT_EQ(map.size(), 2u);  // [10, 15) and what has become one
  std::vector<std::pair<uintptr_t, uintptr_t>> ranges;
  map.ForEach(12, 17, [&](uintptr_t begin, uintptr_t end, int) { ranges.push_back({begin, end}); });
  const std::vector<std::pair<uintptr_t, uintptr_t>> cut = {{12, 15}, {15, 17}};
  EXPECT_EQ(ranges, cut);
}

TEST(IntervalMap, KeepsTheWholeAddressSpaceApart) {
  IntervalMap<int> map;
  map.Assign(0, 1, 1);
  map.Assign(UINTPTR_MAX - 1, UINTPTR_MAX, 2);
  map.Assign(5, 5, 3);  // empty
  map.Update(9, 9, [](uintptr_t, uintptr_t, int&) { FAIL() << "nothing to visit"; });
  EXPECT_EQ(map.size(), 2u);
  map.Assign(0, UINTPTR_MAX, 0);
  EXPECT_EQ(map.size(), 0u);
}

TEST(IntervalMap, AgreesWithAnArrayOfBytes) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    IntervalMap<int> map;
    std::array<int, kBytes> bytes{};
    for (int step = 0; step < 60; ++step) {
      uintptr_t begin = random() % kBytes, end = random() % (kBytes + 1);
      if (begin > end) std::swap(begin, end);
      const int value = static_cast<int>(random() % 4);
      if (random() % 2 == 0) {
        map.Assign(begin, end, value);
        for (uintptr_t at = begin; at < end; ++at) bytes[at] = value;
      } else {
        map.Update(begin, end, [&](uintptr_t from, uintptr_t to, int& old) {
          for (uintptr_t at = from; at < to; ++at) {
            ASSERT_EQ(old, bytes[at]);
            bytes[at] = (old + value) % 4;
          }
          old = (old + value) % 4;
        });
      }
      ASSERT_EQ(Values(map), bytes);
      ASSERT_EQ(map.size(), Runs(bytes));  // neighbours that are equal are one
    }
  }
}

}  // namespace
}  // namespace anvil::sanitizer
