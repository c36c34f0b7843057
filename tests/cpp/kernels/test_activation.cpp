// SPDX-License-Identifier: Apache-2.0
//
// Gated activations against their definitions in float64.
#include <numbers>

#include "every_table.h"
#include "rows_of_values.h"

namespace anvil::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Gate kGates[] = {Gate::kSilu, Gate::kGelu, Gate::kGeluTanh};

// Written so that nothing is lost where results vanish.
double gated(Gate gate, double x) {
  switch (gate) {
    case Gate::kSilu:
      return x / (1 + std::exp(-x));
    case Gate::kGelu:
      return x * std::erfc(-x / std::numbers::sqrt2) / 2;
    case Gate::kGeluTanh:
      return x / (1 + std::exp(-2 * std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
  }
  return 0;
}

class GateAndMul : public EveryTable {
 protected:
  void check(ElementType type, Gate gate, RowsOfValues& x, int64_t rows, int64_t size, double units,
             double absolute) const {
    RowsOfValues y(type, rows, size);
    const GateAndMulArgs args = {.input = x.rows(), .output = y.rows(), .size = size, .gate = gate};
    table().gate_and_mul(args, 0, rows);
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<double> expected;
      for (int64_t i = 0; i < size; ++i) {
        expected.push_back(gated(gate, x.get(row, i)) * x.get(row, size + i));
      }
      y.expect(row, expected, units, absolute, "gate " + std::to_string(static_cast<int>(gate)));
    }
    EXPECT_TRUE(y.surroundings_are_intact());
  }
};
ANVIL_TEST_EVERY_TABLE(GateAndMul);

TEST_P(GateAndMul, EveryTypeAndSize) {
  std::mt19937 random(1);
  for (ElementType type : kElementTypes) {
    for (int64_t size : {1, 2, 7, 8, 9, 15, 16, 17, 33, 100, 1030}) {
      RowsOfValues x(type, 2, 2 * size);
      x.fill_normal(random, 0, 2);
      for (Gate gate : kGates) {
        // The exponential of tanh's form is off as many units as its argument is large: -40 here.
        const double float32_units = gate == Gate::kGeluTanh ? 60 : 6;
        const double units = type == ElementType::kFloat32 ? float32_units : 1;
        check(type, gate, x, 2, size, units, type == ElementType::kFp16 ? 0x1p-24 : 0);
      }
    }
  }
}

// Silu and gelu keep their relative accuracy to where float32 ends.
TEST_P(GateAndMul, Tails) {
  constexpr int64_t kSize = 500;
  RowsOfValues x(ElementType::kFloat32, 1, 2 * kSize);
  for (int64_t i = 0; i < kSize; ++i) {
    x.set(0, kSize + i, 1);
    x.set(0, i, -static_cast<double>(i) * 0.17);  // to -85
  }
  check(ElementType::kFloat32, Gate::kSilu, x, 1, kSize, 4, 0);
  for (int64_t i = 0; i < kSize; ++i) x.set(0, i, -static_cast<double>(i) * 0.025);  // to -12.5
  check(ElementType::kFloat32, Gate::kGelu, x, 1, kSize, 6, 0);
}

TEST_P(GateAndMul, NoNumbersAndHugeOnes) {
  constexpr double kValues[] = {kInfinity, -kInfinity, std::nan(""), 3e38,
                                -3e38,     1e10,       -1e10,        -0.0};
  constexpr int64_t kSize = 19;
  for (double factor : {1.0, -2.0, 0.0, kInfinity, std::nan("")}) {
    RowsOfValues x(ElementType::kFloat32, 1, 2 * kSize);
    for (int64_t i = 0; i < kSize; ++i) {
      x.set(0, i, kValues[i % 8]);
      x.set(0, kSize + i, factor);
    }
    for (Gate gate : kGates) {
      RowsOfValues y(ElementType::kFloat32, 1, kSize);
      table().gate_and_mul({.input = x.rows(), .output = y.rows(), .size = kSize, .gate = gate}, 0,
                           1);
      for (int64_t i = 0; i < kSize; ++i) {
        const double value = x.get(0, i);
        // As in the formulas: -inf times 0 is NaN.
        const double gate_value = value < -1e3 ? value * 0 : value;
        const float expected = static_cast<float>(gate_value * factor),
                    found = static_cast<float>(y.get(0, i));
        EXPECT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected)))
            << value << " * " << factor << ": " << found;
      }
    }
  }
}

}  // namespace
}  // namespace anvil::kernels
