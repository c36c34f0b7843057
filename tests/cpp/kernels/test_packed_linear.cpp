// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "element_rows.h"
#include "every_table.h"
#include "guarded_memory.h"

namespace anvil::kernels {
namespace {

class PackedLinear : public EveryTable {
 protected:
  static int64_t unit_depth(ElementType type) { return type == ElementType::kBf16 ? 2 : 1; }
  static int64_t strips_of(int64_t columns) {
    return (columns + kStripColumns - 1) / kStripColumns;
  }
  static int64_t packed_size(ElementType type, int64_t columns, int64_t depth) {
    const int64_t unit = unit_depth(type);
    return strips_of(columns) * kStripColumns * ((depth + unit - 1) / unit * unit);
  }

  // A weight [columns, depth] at a stride, packed in two ranges.
  ElementRows packed(ElementRows& weight, int64_t stride, int64_t columns, int64_t depth) const {
    ElementRows result(weight.type(), packed_size(weight.type(), columns, depth));
    const PackArgs args = {weight.data(), stride, result.data(), weight.type(), columns, depth};
    const int64_t strips = strips_of(columns);
    table().pack_linear(args, 0, strips / 2);
    table().pack_linear(args, strips / 2, strips);
    return result;
  }

  // In `ranges` ranges, so that blocks are begun and left anywhere.
  void multiply(PackedLinearArgs args, int64_t ranges) const {
    const int64_t row_bytes = table().linear_input_bytes(args);
    GuardedMemory prepared(static_cast<size_t>(args.rows * row_bytes), Place::kBeforeGuard);
    if (row_bytes > 0) {
      args.prepared = prepared.data();
      table().prepare_linear_input(args, args.rows / 2, args.rows);
      table().prepare_linear_input(args, 0, args.rows / 2);
      prepared.make_read_only();
    }
    args.row_blocks = (args.rows + kBlockRows - 1) / kBlockRows;
    const int64_t items = args.row_blocks * strips_of(args.columns);
    for (int64_t i = 0; i < ranges; ++i) {
      table().packed_linear(args, items * i / ranges, items * (i + 1) / ranges);
    }
  }
};
ANVIL_TEST_EVERY_TABLE(PackedLinear);

TEST_P(PackedLinear, PackingPadsWithZerosAndUnpackingBringsBack) {
  for (ElementType type : kElementTypes) {
    for (int64_t columns : {1, 16, 35}) {
      for (int64_t depth : {1, 2, 7}) {
        const int64_t stride = depth + 2, unit = unit_depth(type);
        const int64_t units = (depth + unit - 1) / unit;
        ElementRows weight(type, columns * stride);
        weight.fill(3);
        ElementRows form = packed(weight, stride, columns, depth);
        for (int64_t i = 0; i < form.size(); ++i) {
          const int64_t k = i / (unit * kStripColumns) % units * unit + i % unit;
          const int64_t column =
              i / (unit * kStripColumns * units) * kStripColumns + i / unit % kStripColumns;
          const bool inside = column < columns && k < depth;
          EXPECT_EQ(form.get(i), inside ? weight.get(column * stride + k) : 0.0f) << "place " << i;
        }
        ElementRows back(type, columns * depth);
        table().unpack_linear({back.data(), depth, form.data(), type, columns, depth}, 0,
                              strips_of(columns));
        for (int64_t i = 0; i < back.size(); ++i) {
          EXPECT_EQ(back.get(i), weight.get(i / depth * stride + i % depth));
        }
      }
    }
  }
}

TEST_P(PackedLinear, EqualsFloat64) {
  for (ElementType weight_type : kElementTypes) {
    for (ElementType input_type : kElementTypes) {
      for (int64_t rows : {1, 2, 3, 5, 8, 9, 31}) {
        for (int64_t columns : {1, 16, 77, 160}) {
          for (int64_t depth : {0, 1, 2, 9, 64, 1031}) {
            const int64_t stride = depth + 5;
            ElementRows input(input_type, rows * stride), weight(weight_type, columns * depth);
            const ElementType to = rows % 2 == 0 ? ElementType::kFloat32 : input_type;
            ElementRows bias(input_type, columns), output(to, rows * columns);
            input.fill(1), weight.fill(2), bias.fill(3);
            ElementRows form = packed(weight, depth, columns, depth);
            const bool biased = columns != 16;
            multiply({input.data(), stride, input_type, form.data(), weight_type,
                      biased ? bias.data() : nullptr, input_type, output.data(), to, rows, columns,
                      depth, 0},
                     2);
            for (int64_t i = 0; i < rows * columns; ++i) {
              const int64_t row = i / columns, column = i % columns;
              double sum = biased ? bias.get(column) : 0, magnitude = std::abs(sum);
              for (int64_t k = 0; k < depth; ++k) {
                const double product =
                    double{input.get(row * stride + k)} * double{weight.get(column * depth + k)};
                sum += product, magnitude += std::abs(product);
              }
              const double allowed = magnitude * static_cast<double>(depth + 2) * 0x1p-24 +
                                     std::abs(sum) * rounding_of(to);
              ASSERT_NEAR(output.get(i), sum, allowed)
                  << rows << " rows, " << columns << " columns, depth " << depth << ", output "
                  << i;
            }
          }
        }
      }
    }
  }
}

// What is left of x when all but one pair of each four is rounded to bfloat16.
std::vector<float> mostly_rounded(const std::vector<float>& x) {
  // To eight bits, ties to even.
  const auto rounded = [](float value) {
    int exponent;
    const float fraction = std::frexp(value, &exponent);
    return std::ldexp(std::nearbyint(fraction * 256), exponent - 8);
  };
  std::vector<float> result(x.size());
  for (size_t group = 0; group < x.size(); group += 8) {
    const size_t end = std::min(x.size(), group + 8);
    size_t kept = group;
    float most = -1;
    for (size_t i = group; i < end; ++i) {
      result[i] = rounded(x[i]);
      const float lost = std::abs(x[i] - result[i]);
      if (lost > most) most = lost, kept = i / 2;
    }
    for (size_t i = 2 * kept; i < std::min(end, 2 * kept + 2); ++i) {
      result[i] += rounded(x[i] - result[i]);
    }
  }
  return result;
}

TEST_P(PackedLinear, OnePairOfFourKeepsItsRemainder) {
  for (ElementType input_type : {ElementType::kFloat32, ElementType::kFp16}) {
    for (int64_t rows : {1, 2, 3, 4, 8, 9, 31}) {
      for (int64_t depth : {1, 2, 7, 8, 9, 64, 1031}) {
        constexpr int64_t kColumns = 77;
        const int64_t stride = depth + 5;
        ElementRows input(input_type, rows * stride);
        ElementRows weight(ElementType::kBf16, kColumns * depth);
        ElementRows output(ElementType::kFloat32, rows * kColumns);
        input.fill(1), weight.fill(2);
        ElementRows form = packed(weight, depth, kColumns, depth);
        multiply({.input = input.data(),
                  .input_stride = stride,
                  .input_type = input_type,
                  .weight = form.data(),
                  .weight_type = ElementType::kBf16,
                  .bias = nullptr,
                  .bias_type = input_type,
                  .output = output.data(),
                  .output_type = ElementType::kFloat32,
                  .rows = rows,
                  .columns = kColumns,
                  .depth = depth,
                  .row_blocks = 0,
                  .rounding = InputRounding::kMost},
                 2);
        for (int64_t row = 0; row < rows; ++row) {
          std::vector<float> x;
          for (int64_t k = 0; k < depth; ++k) x.push_back(input.get(row * stride + k));
          x = mostly_rounded(x);
          for (int64_t column = 0; column < kColumns; ++column) {
            double sum = 0, magnitude = 0;
            for (int64_t k = 0; k < depth; ++k) {
              const double product =
                  double{x[static_cast<size_t>(k)]} * double{weight.get(column * depth + k)};
              sum += product, magnitude += std::abs(product);
            }
            // A kept input is two terms of the sum.
            ASSERT_NEAR(output.get(row * kColumns + column), sum,
                        magnitude * static_cast<double>(5 * depth / 4 + 4) * 0x1p-24)
                << rows << " rows, depth " << depth << ", column " << column;
          }
        }
      }
    }
  }
}

// Infinities and NaNs reach the outputs that they are part of, and the largest numbers stay finite.
TEST_P(PackedLinear, NumbersAtTheEndOfTheRange) {
  constexpr int64_t kDepth = 37;
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  for (ElementType weight_type : kElementTypes) {
    ElementRows weight(weight_type, kDepth);
    for (int64_t k = 0; k < kDepth; ++k) weight.set(k, 0.25f);
    ElementRows form = packed(weight, kDepth, 1, kDepth);
    for (float value : {infinity, -infinity, largest, -largest, std::nanf("")}) {
      for (int64_t place : {0, 15, 36}) {
        ElementRows input(ElementType::kFloat32, kDepth), output(ElementType::kFloat32, 1);
        for (int64_t k = 0; k < kDepth; ++k) input.set(k, k == place ? value : 0.0f);
        multiply({input.data(), kDepth, ElementType::kFloat32, form.data(), weight_type, nullptr,
                  weight_type, output.data(), ElementType::kFloat32, 1, 1, kDepth, 0},
                 1);
        const float expected = value * 0.25f;
        if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(output.get(0)));
        } else {
          EXPECT_EQ(output.get(0), expected);
        }
      }
    }
  }
}

// Tiles, panels, blocks of rows and ranges differ with the number of rows; bits do not.
TEST_P(PackedLinear, ARowIsTheSameBitsBesideAnyOthers) {
  constexpr int64_t kRows = 2 * kBlockRows + 7, kColumns = 150, kDepth = 531;
  for (ElementType weight_type : kElementTypes) {
    for (ElementType input_type : kElementTypes) {
      ElementRows input(input_type, kRows * kDepth), weight(weight_type, kColumns * kDepth);
      ElementRows all(ElementType::kFloat32, kRows * kColumns);
      input.fill(5), weight.fill(6);
      ElementRows form = packed(weight, kDepth, kColumns, kDepth);
      PackedLinearArgs args = {
          input.data(), kDepth,     input_type, form.data(),           weight_type,
          nullptr,      input_type, all.data(), ElementType::kFloat32, kRows,
          kColumns,     kDepth,     0};
      for (InputRounding rounding : {InputRounding::kNone, InputRounding::kMost}) {
        if (rounding == InputRounding::kMost && weight_type != ElementType::kBf16) continue;
        args.rounding = rounding;
        args.output = all.data();
        args.rows = kRows;
        multiply(args, 3);
        for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 200}) {
          ElementRows some(ElementType::kFloat32, rows * kColumns);
          args.output = some.data();
          args.rows = rows;
          multiply(args, rows % 2 + 1);
          ASSERT_EQ(std::memcmp(some.data(), all.data(), some.bytes().size()), 0)
              << rows << " rows of weight type " << static_cast<int>(weight_type);
        }
      }
    }
  }
}

TEST_P(PackedLinear, TouchesNothingBesideItsOperands) {
  constexpr int64_t kRows = 7, kColumns = 19, kDepth = 33;
  for (ElementType type : kElementTypes) {
    for (Place place : kPlaces) {
      const size_t element = type == ElementType::kFloat32 ? 4 : 2;
      const int64_t size = packed_size(type, kColumns, kDepth);
      GuardedMemory input(kRows * kDepth * element, place, element);
      GuardedMemory plain(kColumns * kDepth * element, place, element);
      GuardedMemory form(size * element, place, 4), bias(kColumns * element, place, element);
      GuardedMemory output(kRows * kColumns * element, place, element);
      std::memset(input.data(), 0, input.bytes());
      std::memset(plain.data(), 0, plain.bytes());
      std::memset(bias.data(), 0, bias.bytes());
      table().pack_linear({plain.data(), kDepth, form.data(), type, kColumns, kDepth}, 0, 2);
      for (GuardedMemory* read : {&input, &plain, &form, &bias}) read->make_read_only();
      multiply({input.data(), kDepth, type, form.data(), type, bias.data(), type, output.data(),
                type, kRows, kColumns, kDepth, 0},
               1);
      for (size_t i = 0; i < output.bytes(); ++i) ASSERT_EQ(output.data()[i], 0);
      if (type == ElementType::kBf16) {
        GuardedMemory wide(kRows * kDepth * sizeof(float), place, sizeof(float));
        std::memset(wide.data(), 0, wide.bytes());
        wide.make_read_only();
        multiply({wide.data(), kDepth, ElementType::kFloat32, form.data(), type, bias.data(), type,
                  output.data(), type, kRows, kColumns, kDepth, 0, InputRounding::kMost},
                 1);
        for (size_t i = 0; i < output.bytes(); ++i) ASSERT_EQ(output.data()[i], 0);
      }
      EXPECT_TRUE(form.surroundings_are_intact() && output.surroundings_are_intact());
      const int64_t ids[] = {18, 0};
      GuardedMemory rows(2 * kDepth * element, place, element);
      table().packed_embedding({ids, false, form.data(), 0, type, rows.data(), type, kDepth}, 0, 2);
      for (size_t i = 0; i < rows.bytes(); ++i) ASSERT_EQ(rows.data()[i], 0);
      EXPECT_TRUE(rows.surroundings_are_intact());
    }
  }
}

TEST_P(PackedLinear, RowsOfAPackedTable) {
  constexpr int64_t kTableRows = 37, kHidden = 523;
  const std::vector<int32_t> ids = {36, 0, 15, 16, 16};
  for (ElementType from : kElementTypes) {
    for (ElementType to : kElementTypes) {
      ElementRows weight(from, kTableRows * kHidden), output(to, 5 * kHidden);
      weight.fill(9);
      ElementRows form = packed(weight, kHidden, kTableRows, kHidden);
      table().packed_embedding({ids.data(), true, form.data(), 0, from, output.data(), to, kHidden},
                               1, 5);
      for (int64_t i = 0; i < output.size(); ++i) {
        const float value = weight.get(ids[i / kHidden] * kHidden + i % kHidden);
        const double allowed = from == to ? 0 : std::abs(value) * rounding_of(to);
        ASSERT_NEAR(output.get(i), i < kHidden ? 0.0f : value, allowed) << "element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace anvil::kernels
