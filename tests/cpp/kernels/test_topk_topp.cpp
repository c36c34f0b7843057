// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "every_table.h"

namespace anvil::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Written from the definition: sort, cut off after k, cut off where the sum reaches p.
std::vector<float> expected(const std::vector<float>& row, int64_t k, float p, float mask) {
  std::vector<size_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](size_t i) { return !(row[i] > -kInfinity); });
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return row[a] > row[b]; });
  size_t kept = std::min<size_t>(order.size(), static_cast<size_t>(k));
  if (p < 1 && kept > 0) {
    const auto weight = [&](size_t i) { return std::exp(double{row[order[i]]} - row[order[0]]); };
    double total = 0, reached = 0;
    for (size_t i = 0; i < kept; ++i) total += weight(i);
    size_t i = 0;
    do reached += weight(i++);
    while (reached < p * total && i < kept);
    kept = i;
  }
  if (kept == order.size()) return row;
  std::vector<float> result(row.size(), mask);
  for (size_t i = 0; i < kept; ++i) result[order[i]] = row[order[i]];
  return result;
}

class TopkTopp : public EveryTable {
 protected:
  std::vector<float> masked(std::vector<float> row, int32_t k, float p, float mask) const {
    constexpr float kUntouched = 42;
    const int64_t size = static_cast<int64_t>(row.size());
    row.push_back(kUntouched);
    std::vector<float> scratch(static_cast<size_t>(size + kTopkToppSlack));
    const TopkToppArgs args = {.logits = row.data(),
                               .k = &k,
                               .p = &p,
                               .scratch = scratch.data(),
                               .row_stride = 0,
                               .vocab_size = size,
                               .mask_value = mask};
    table().topk_topp(args, 0, 1);
    EXPECT_EQ(row.back(), kUntouched) << "written behind the row";
    row.pop_back();
    return row;
  }

  void check(const std::vector<float>& row, int32_t k, float p, float mask = -kInfinity) const {
    const std::vector<float> found = masked(row, k, p, mask);
    // Near p, float32 sums may decide otherwise about one token.
    for (float near : {p, p * (1 - 1e-6f), std::min(p * (1 + 1e-6f), p < 1 ? 0.9999999f : p)}) {
      if (found == expected(row, k, near, mask)) return;
    }
    EXPECT_EQ(found, expected(row, k, p, mask)) << row.size() << " logits, k " << k << ", p " << p;
  }
};
ANVIL_TEST_EVERY_TABLE(TopkTopp);

TEST_P(TopkTopp, EveryPairOfLimits) {
  std::mt19937 random(1);
  for (size_t size : {1, 7, 8, 9, 16, 40, 1000}) {
    for (float scale : {0.01f, 1.0f, 20.0f}) {
      std::normal_distribution<float> normal(0, scale);
      std::vector<float> row(size);
      for (float& x : row) x = normal(random);
      const int32_t n = static_cast<int32_t>(size);
      for (int32_t k : {1, 2, n / 2 + 1, n - 1, n, n + 1}) {
        for (float p : {0.0f, 0.3f, 0.9f, 0.999f, 1.0f}) check(row, std::max(k, 1), p, -1e4f);
      }
    }
  }
}

TEST_P(TopkTopp, EqualLogitsAreKeptInTheirOrder) {
  std::mt19937 random(2);
  for (unsigned distinct : {1, 2, 5, 60}) {
    std::vector<float> row(777);
    for (float& x : row) {
      const unsigned value = random() % (distinct + 1);
      x = value == distinct ? -kInfinity : static_cast<float>(value) / 4;
    }
    for (int32_t k : {1, 10, 100, 500, 777}) {
      for (float p : {0.2f, 0.77f, 1.0f}) check(row, k, p);
    }
  }
}

TEST_P(TopkTopp, ValuesFarApart) {
  std::vector<float> row(300);
  for (size_t i = 0; i < row.size(); ++i) {
    const int exponent = static_cast<int>(i * 7 % 250) - 125;
    row[i] = std::ldexp(i % 2 == 0 ? 1.0f : -1.0f, exponent);
  }
  row[17] = std::numeric_limits<float>::max();
  row[18] = std::numeric_limits<float>::lowest();
  for (int32_t k : {1, 2, 3, 50, 149, 150, 151, 299}) check(row, k, 1.0f);
}

}  // namespace
}  // namespace anvil::kernels
