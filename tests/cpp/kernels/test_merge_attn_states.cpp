// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <vector>

#include "element_rows.h"
#include "every_table.h"

namespace anvil::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One side's memory: outputs and sums with gaps between their rows.
struct Part {
  ElementRows output;
  std::vector<float> lse;
  AttentionPart part = {};

  Part(ElementType type, int64_t tokens, int64_t heads, int64_t head_size, uint32_t seed)
      : output(type, tokens * (heads * (head_size + 1) + 2)), lse(heads * (tokens + 1)) {
    output.fill(seed);
    for (size_t i = 0; i < lse.size(); ++i) {
      lse[i] = static_cast<float>((i * 7 + seed * 5) % 23) - 11.5f;
    }
    part = {output.data(), heads * (head_size + 1) + 2, head_size + 1, lse.data(), tokens + 1, 1};
  }
  float lse_of(int64_t head, int64_t token) const {
    return lse[head * part.lse_head_stride + token];
  }
  float value(int64_t token, int64_t head, int64_t i) const {
    return output.get(token * part.token_stride + head * part.head_stride + i);
  }
};

class MergeAttnStates : public EveryTable {};
ANVIL_TEST_EVERY_TABLE(MergeAttnStates);

TEST_P(MergeAttnStates, WeighsBothPartsByTheirSums) {
  constexpr int64_t kTokens = 5, kHeads = 3;
  for (ElementType type : kElementTypes) {
    for (int64_t size : {1, 7, 8, 16, 31, 64, 72, 130}) {
      Part prefix(type, kTokens, kHeads, size, 1), suffix(type, kTokens, kHeads, size, 2);
      ElementRows output(type, kTokens * kHeads * size);
      std::vector<float> lse(kHeads * kTokens, -77.0f);
      table().merge_attn_states(
          {prefix.part, suffix.part, type, output.data(), lse.data(), kTokens, kHeads, size}, 1,
          kTokens);
      for (int64_t head = 0; head < kHeads; ++head) {
        EXPECT_EQ(lse[head * kTokens], -77.0f) << "outside of the range";
        for (int64_t token = 1; token < kTokens; ++token) {
          const double a = std::exp(static_cast<double>(prefix.lse_of(head, token)));
          const double b = std::exp(static_cast<double>(suffix.lse_of(head, token)));
          EXPECT_NEAR(lse[head * kTokens + token], std::log(a + b), 4e-6);
          for (int64_t i = 0; i < size; ++i) {
            const double expected =
                (a * prefix.value(token, head, i) + b * suffix.value(token, head, i)) / (a + b);
            EXPECT_NEAR(output.get((token * kHeads + head) * size + i), expected,
                        std::abs(expected) * rounding_of(type) + 2e-6);
          }
        }
      }
    }
  }
}

TEST_P(MergeAttnStates, APartWithoutKeysDoesNotCountWhateverItHolds) {
  constexpr int64_t kSize = 19;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (ElementType type : kElementTypes) {
    // Token 0: no prefix; 1: no suffix; 2: neither.
    Part prefix(type, 3, 1, kSize, 1), suffix(type, 3, 1, kSize, 2);
    prefix.lse[0] = suffix.lse[1] = prefix.lse[2] = suffix.lse[2] = -kInfinity;
    for (int64_t i = 0; i < kSize; ++i) {
      prefix.output.set(i, nan);
      suffix.output.set(suffix.part.token_stride + i, kInfinity);
      prefix.output.set(2 * prefix.part.token_stride + i, nan);
    }
    ElementRows output(type, 3 * kSize);
    std::vector<float> lse(3);
    table().merge_attn_states(
        {prefix.part, suffix.part, type, output.data(), lse.data(), 3, 1, kSize}, 0, 3);
    EXPECT_EQ(lse, (std::vector<float>{suffix.lse[0], prefix.lse[1], -kInfinity}));
    for (int64_t i = 0; i < kSize; ++i) {
      EXPECT_EQ(output.get(i), suffix.value(0, 0, i));
      EXPECT_EQ(output.get(kSize + i), prefix.value(1, 0, i));
      EXPECT_EQ(output.get(2 * kSize + i), 0.0f);
    }
  }
}

}  // namespace
}  // namespace anvil::kernels
