// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <vector>

#include "element_rows.h"
#include "every_table.h"

namespace anvil::kernels {
namespace {

class Embedding : public EveryTable {};
ANVIL_TEST_EVERY_TABLE(Embedding);

TEST_P(Embedding, CopiesOrConvertsTheRowsOfItsRange) {
  const std::vector<int64_t> wide = {3, 0, 6, 3, 5};
  const std::vector<int32_t> narrow(wide.begin(), wide.end());
  const int64_t count = static_cast<int64_t>(wide.size());
  for (ElementType from : kElementTypes) {
    for (ElementType to : kElementTypes) {
      for (int64_t hidden : {1, 7, 8, 16, 31, 33, 64, 130}) {
        for (bool as_int32 : {false, true}) {
          const int64_t stride = hidden + 3;
          ElementRows weight(from, 7 * stride), output(to, count * hidden);
          weight.fill(1);
          const EmbeddingArgs args = {
              .ids = as_int32 ? static_cast<const void*>(narrow.data()) : wide.data(),
              .ids_are_int32 = as_int32,
              .weight = weight.data(),
              .weight_stride = stride,
              .weight_type = from,
              .output = output.data(),
              .output_type = to,
              .hidden = hidden,
          };
          table().embedding(args, 1, count);
          for (int64_t i = 0; i < hidden; ++i) EXPECT_EQ(output.get(i), 0.0f);
          for (int64_t i = hidden; i < count * hidden; ++i) {
            const float value = weight.get(wide[i / hidden] * stride + i % hidden);
            const double allowed = from == to ? 0 : std::abs(value) * rounding_of(to);
            EXPECT_NEAR(output.get(i), value, allowed) << "element " << i;
          }
        }
      }
    }
  }
}

// One value per row, once in a whole register and once by itself.
TEST_P(Embedding, RoundsToTheNearestAndTiesToEven) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  struct Rounding {
    float value;
    float as_bf16;
    float as_fp16;
  };
  const std::vector<Rounding> roundings = {
      {1.0f + 0x1p-8f, 1.0f, 1.0f + 0x1p-8f},  // a tie of bfloat16: to even, below
      {1.0f + 3 * 0x1p-8f, 1.0f + 0x1p-6f, 1.0f + 3 * 0x1p-8f},  // and above
      {1.0f + 0x1p-8f + 0x1p-20f, 1.0f + 0x1p-7f, 1.0f + 0x1p-8f},
      {1.0f + 0x1p-11f, 1.0f, 1.0f},
      {-1.0f - 3 * 0x1p-11f, -1.0f, -1.0f - 0x1p-9f},
      {65519.0f, 65536.0f, 65504.0f},
      {65520.0f, 65536.0f, kInfinity},
      {std::numeric_limits<float>::max(), kInfinity, kInfinity},
      {-kInfinity, -kInfinity, -kInfinity},
      {0x1p-24f, 0x1p-24f, 0x1p-24f},
      {0x1p-25f, 0x1p-25f, 0.0f},
      {0x1p-133f, 0x1p-133f, 0.0f},
      {0x1p-134f, 0.0f, 0.0f},
      {0.0f, 0.0f, 0.0f},
  };
  constexpr int64_t kHidden = 17;
  ElementRows weight(ElementType::kFloat32, static_cast<int64_t>(roundings.size()) * kHidden);
  std::vector<int64_t> ids;
  for (size_t row = 0; row < roundings.size(); ++row) {
    ids.push_back(static_cast<int64_t>(row));
    for (int64_t i = 0; i < kHidden; ++i) weight.set(row * kHidden + i, roundings[row].value);
  }
  for (ElementType to : {ElementType::kBf16, ElementType::kFp16}) {
    ElementRows output(to, weight.size());
    table().embedding({ids.data(), false, weight.data(), kHidden, ElementType::kFloat32,
                       output.data(), to, kHidden},
                      0, static_cast<int64_t>(ids.size()));
    for (int64_t i = 0; i < output.size(); ++i) {
      const Rounding& rounding = roundings[i / kHidden];
      EXPECT_EQ(output.get(i), to == ElementType::kBf16 ? rounding.as_bf16 : rounding.as_fp16)
          << rounding.value << ", element " << i % kHidden;
    }
  }
}

TEST_P(Embedding, NanStaysNan) {
  // All bits that make this one are lost in half precision.
  const uint32_t bits = 0x7f800001;
  float nan;
  std::memcpy(&nan, &bits, sizeof(nan));
  constexpr int64_t kHidden = 17;
  std::vector<float> weight(kHidden, nan);
  const int32_t id = 0;
  for (ElementType to : {ElementType::kBf16, ElementType::kFp16}) {
    ElementRows output(to, kHidden);
    table().embedding(
        {&id, true, weight.data(), kHidden, ElementType::kFloat32, output.data(), to, kHidden}, 0,
        1);
    for (int64_t i = 0; i < kHidden; ++i) EXPECT_TRUE(std::isnan(output.get(i)));
  }
}

}  // namespace
}  // namespace anvil::kernels
