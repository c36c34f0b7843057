// SPDX-License-Identifier: Apache-2.0
//
// Norms against their definitions in float64.
#include <tuple>

#include "every_table.h"
#include "rows_of_values.h"

namespace anvil::kernels {
namespace {

constexpr double kEpsilon = 1e-5;
constexpr int64_t kSizes[] = {1, 2, 7, 8, 9, 15, 16, 17, 33, 100, 1030};

using Values = std::vector<double>;

Values rms_normed(const Values& x, const Values* weight, size_t measured, double offset) {
  double squares = 0;
  for (size_t i = 0; i < measured; ++i) squares += x[i] * x[i];
  const double scale = 1 / std::sqrt(squares / static_cast<double>(measured) + kEpsilon);
  Values result;
  for (size_t i = 0; i < x.size(); ++i) {
    result.push_back(x[i] * scale * (weight == nullptr ? 1 : (*weight)[i] + offset));
  }
  return result;
}

double units_for(ElementType type) { return type == ElementType::kFloat32 ? 4 : 1; }

class Norm : public EveryTable {
 protected:
  std::mt19937 random_{1};
};
ANVIL_TEST_EVERY_TABLE(Norm);

TEST_P(Norm, RmsNormOfEveryTypeAndSize) {
  for (ElementType type : kElementTypes) {
    for (ElementType weight_type : kElementTypes) {
      for (int64_t size : kSizes) {
        RowsOfValues x(type, 3, size), y(type, 3, size), weight(weight_type, 1, size);
        x.fill_normal(random_, 0, 2);
        weight.fill_normal(random_, 1, 0.3);
        const Values weights = weight.row(0);
        for (bool weighed : {true, false}) {
          const int64_t measured = weighed ? size : (size + 1) / 2;
          RmsNormArgs args = {.input = x.rows(),
                              .residual = {},
                              .output = y.rows(),
                              .total = {},
                              .norm = {.weight = {},
                                       .size = size,
                                       .variance_size = measured,
                                       .epsilon = kEpsilon,
                                       .weight_offset = 0.25f}};
          if (weighed) args.norm.weight = weight.parameters();
          table().rms_norm(args, 0, 1);
          table().rms_norm(args, 1, 3);
          for (int64_t row = 0; row < 3; ++row) {
            y.expect(row,
                     rms_normed(x.row(row), weighed ? &weights : nullptr,
                                static_cast<size_t>(measured), 0.25),
                     units_for(type), 1e-7, "size " + std::to_string(size));
          }
        }
        EXPECT_TRUE(y.surroundings_are_intact());
      }
    }
  }
}

TEST_P(Norm, ResidualsInPlaceAndApart) {
  for (ElementType type : kElementTypes) {
    for (ElementType residual_type : kElementTypes) {
      for (int64_t size : kSizes) {
        RowsOfValues x(type, 2, size), y(type, 2, size);
        RowsOfValues residual(residual_type, 2, size), total(residual_type, 2, size);
        x.fill_normal(random_, 0, 1);
        residual.fill_normal(random_, 0, 3);
        std::vector<Values> sums, normed;
        for (int64_t row = 0; row < 2; ++row) {
          Values sum = x.row(row);
          const Values other = residual.row(row);
          for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
          normed.push_back(rms_normed(sum, nullptr, sum.size(), 0));
          sums.push_back(sum);
        }
        const RmsNormArgs apart = {.input = x.rows(),
                                   .residual = residual.rows(),
                                   .output = y.rows(),
                                   .total = total.rows(),
                                   .norm = {.weight = {},
                                            .size = size,
                                            .variance_size = size,
                                            .epsilon = kEpsilon,
                                            .weight_offset = 0}};
        table().rms_norm(apart, 0, 2);
        RmsNormArgs in_place = apart;
        in_place.output = in_place.input;
        in_place.total = in_place.residual;
        table().rms_norm(in_place, 0, 2);
        for (size_t row = 0; row < 2; ++row) {
          const int64_t r = static_cast<int64_t>(row);
          y.expect(r, normed[row], units_for(type), 1e-6, "apart");
          total.expect(r, sums[row], 1, 1e-6, "total");
          EXPECT_EQ(x.row(r), y.row(r));
          EXPECT_EQ(residual.row(r), total.row(r));
        }
        for (RowsOfValues* written : {&x, &y, &residual, &total}) {
          EXPECT_TRUE(written->surroundings_are_intact());
        }
      }
    }
  }
}

// Squares of these do not fit float32, and 1 / 3e38 is no normal number of it.
TEST_P(Norm, RmsNormOfHugeAndTinyValues) {
  for (double scale : {3e38, 1e30, 1e-25, 1e-38}) {
    RowsOfValues x(ElementType::kFloat32, 1, 37), y(ElementType::kFloat32, 1, 37);
    for (int64_t i = 0; i < 37; ++i) x.set(0, i, scale * static_cast<double>(i - 18) / 18);
    Values expected = x.row(0);
    double squares = 0;
    for (double value : expected) squares += value * value / 37;
    for (double& value : expected) value /= std::sqrt(squares);
    const RmsNormArgs args = {
        .input = x.rows(),
        .residual = {},
        .output = y.rows(),
        .total = {},
        .norm = {.weight = {}, .size = 37, .variance_size = 37, .epsilon = 0, .weight_offset = 0}};
    table().rms_norm(args, 0, 1);
    y.expect(0, expected, 4, 0, std::to_string(scale));
  }
}

TEST_P(Norm, LayerNormOfEveryTypeAndSize) {
  for (ElementType type : kElementTypes) {
    for (ElementType parameter_type : kElementTypes) {
      for (int64_t size : kSizes) {
        for (double mean : {0.0, 100.0}) {
          RowsOfValues x(type, 2, size), y(type, 2, size);
          RowsOfValues weight(parameter_type, 1, size), bias(parameter_type, 1, size);
          x.fill_normal(random_, mean, 2);
          weight.fill_normal(random_, 1, 0.3);
          bias.fill_normal(random_, 0, 1);
          const LayerNormArgs args = {.input = x.rows(),
                                      .output = y.rows(),
                                      .weight = weight.parameters(),
                                      .bias = bias.parameters(),
                                      .size = size,
                                      .epsilon = kEpsilon};
          table().layer_norm(args, 0, 2);
          for (int64_t row = 0; row < 2; ++row) {
            Values expected = x.row(row);
            double sum = 0, squares = 0;
            for (double value : expected) sum += value;
            for (double& value : expected) value -= sum / static_cast<double>(size);
            for (double value : expected) squares += value * value / static_cast<double>(size);
            for (int64_t i = 0; i < size; ++i) {
              double& value = expected[static_cast<size_t>(i)];
              value = value / std::sqrt(squares + kEpsilon) * weight.get(0, i) + bias.get(0, i);
            }
            y.expect(row, expected, units_for(type), 1e-6, "mean " + std::to_string(mean));
          }
          EXPECT_TRUE(y.surroundings_are_intact());
        }
      }
    }
  }
}

// Rows of a tensor [2, 3, 4] whose dimensions lie in another order in memory.
TEST_P(Norm, RowsLieCrosswise) {
  constexpr int64_t kSize = 5;
  RowsOfValues x(ElementType::kFloat32, 24, kSize), y(ElementType::kFloat32, 24, kSize);
  x.fill_normal(random_, 0, 1);
  const int64_t stride = x.rows().strides[0];
  RmsNormArgs args = {.input = x.rows(),
                      .residual = {},
                      .output = y.rows(),
                      .total = {},
                      .norm = {.weight = {},
                               .size = kSize,
                               .variance_size = kSize,
                               .epsilon = kEpsilon,
                               .weight_offset = 0}};
  args.input.dims = 3;
  const int64_t sizes[] = {2, 3, 4}, places[] = {1, 8, 2};  // in memory: [3, 4, 2]
  for (int d = 0; d < 3; ++d) {
    args.input.sizes[d] = sizes[d];
    args.input.strides[d] = places[d] * stride;
  }
  table().rms_norm(args, 0, 24);
  for (int64_t row = 0; row < 24; ++row) {
    const int64_t place = row / 12 * 1 + row / 4 % 3 * 8 + row % 4 * 2;
    y.expect(row, rms_normed(x.row(place), nullptr, kSize, 0), 4, 0, "crosswise");
  }
}

}  // namespace
}  // namespace anvil::kernels
