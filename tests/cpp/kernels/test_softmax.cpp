// SPDX-License-Identifier: Apache-2.0
//
// Softmax and its logarithm against their definitions in float64.
#include <algorithm>

#include "every_table.h"
#include "rows_of_values.h"

namespace anvil::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Values = std::vector<double>;

Values expected(const Values& x, bool logarithm) {
  const double greatest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double value : x) sum += std::exp(value - greatest);
  Values result;
  for (double value : x) {
    result.push_back(logarithm ? value - greatest - std::log(sum)
                               : std::exp(value - greatest) / sum);
  }
  return result;
}

class Softmax : public EveryTable {
 protected:
  RowsOfValues run(RowsOfValues& x, int64_t rows, int64_t size, bool logarithm) const {
    RowsOfValues y(ElementType::kFloat32, rows, size);
    table().softmax({.input = x.rows(), .output = y.rows(), .size = size, .logarithm = logarithm},
                    0, rows);
    return y;
  }
};
ANVIL_TEST_EVERY_TABLE(Softmax);

TEST_P(Softmax, EveryTypeAndSize) {
  std::mt19937 random(1);
  for (ElementType type : kElementTypes) {
    for (int64_t size : {1, 2, 7, 8, 9, 15, 16, 17, 33, 100, 5003}) {
      for (double scale : {0.1, 3.0, 30.0}) {
        RowsOfValues x(type, 2, size);
        x.fill_normal(random, 1, scale);
        for (bool logarithm : {false, true}) {
          RowsOfValues y = run(x, 2, size, logarithm);
          for (int64_t row = 0; row < 2; ++row) {
            // The rounding of the differences makes up to a unit per unit of difference.
            const double units = logarithm ? 1 : 4 + 8 * scale;
            y.expect(row, expected(x.row(row), logarithm), units, logarithm ? 3e-7 : 0x1p-148,
                     "scale " + std::to_string(scale));
          }
          EXPECT_TRUE(y.surroundings_are_intact());
        }
      }
    }
  }
}

TEST_P(Softmax, LogarithmOfWhatIsAllButCertain) {
  constexpr int64_t kSize = 21;
  RowsOfValues x(ElementType::kFloat32, 1, kSize);
  for (int64_t i = 0; i < kSize; ++i) x.set(0, i, i == 4 ? 30 : 0);
  RowsOfValues y = run(x, 1, kSize, true);
  y.expect(0, expected(x.row(0), true), 2, 0x1p-48, "certain");  // float64's own rounding
  EXPECT_LT(y.get(0, 4), 0);
}

TEST_P(Softmax, RowsWithoutProbabilities) {
  constexpr int64_t kSize = 35;
  for (ElementType type : kElementTypes) {
    for (int64_t place : {0, 20, 34}) {
      for (double value : {kInfinity, std::nan("")}) {
        RowsOfValues x(type, 2, kSize);
        for (int64_t i = 0; i < kSize; ++i) {
          x.set(0, i, -kInfinity);
          x.set(1, i, i == place ? value : 1.0);
        }
        for (bool logarithm : {false, true}) {
          RowsOfValues y = run(x, 2, kSize, logarithm);
          for (int64_t i = 0; i < kSize; ++i) {
            EXPECT_TRUE(std::isnan(y.get(0, i)) && std::isnan(y.get(1, i)));
          }
        }
      }
    }
  }
}

TEST_P(Softmax, MaskedValuesWeighNothing) {
  constexpr int64_t kSize = 35;
  RowsOfValues x(ElementType::kFp16, 1, kSize);
  for (int64_t i = 0; i < kSize; ++i) x.set(0, i, i % 3 == 0 ? 0.5 : -kInfinity);
  RowsOfValues share = run(x, 1, kSize, false), logarithm = run(x, 1, kSize, true);
  for (int64_t i = 0; i < kSize; ++i) {
    EXPECT_FLOAT_EQ(static_cast<float>(share.get(0, i)), i % 3 == 0 ? 1.0f / 12 : 0.0f);
    EXPECT_FLOAT_EQ(static_cast<float>(logarithm.get(0, i)),
                    i % 3 == 0 ? -std::log(12.0f) : -INFINITY);
  }
}

}  // namespace
}  // namespace anvil::kernels
