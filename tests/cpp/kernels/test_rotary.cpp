// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "element_rows.h"
#include "every_table.h"

namespace anvil::kernels {
namespace {

constexpr int64_t kPositions = 9;

// A call, and what its heads must become.
struct Rotation {
  ElementType type, table_type;
  int64_t tokens, heads, head_size, half;
  bool is_neox, multimodal = false, interleaved = false;
  std::vector<int64_t> section = {0, 0, 0};

  // Which of the three positions turns a pair, from the definition.
  int64_t axis(int64_t pair) const {
    if (!multimodal) return 0;
    if (!interleaved) return pair < section[0] ? 0 : pair < section[0] + section[1] ? 1 : 2;
    return pair % 3 != 0 && pair / 3 < section[pair % 3] ? pair % 3 : 0;
  }

  void check(const KernelTable& table) const {
    const int64_t head_stride = head_size + 3, token_stride = heads * head_stride + 5;
    const int64_t table_stride = 2 * half + 1;
    ElementRows states(type, tokens * token_stride), angles(table_type, kPositions * table_stride);
    states.fill(1);
    angles.fill(2);
    const ElementRows before = states;
    std::vector<int64_t> wide(3 * tokens);
    for (size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<int64_t>(i * 5 % kPositions);
    const std::vector<int32_t> narrow(wide.begin(), wide.end());
    const bool as_int32 = head_size % 2 == 1;

    const RotaryArgs args = {
        .positions = as_int32 ? static_cast<const void*>(narrow.data()) : wide.data(),
        .position_stride = 1,
        .axis_stride = multimodal ? tokens : 0,
        .positions_are_int32 = as_int32,
        .table = angles.data(),
        .table_stride = table_stride,
        .table_type = table_type,
        .half = half,
        .is_neox = is_neox,
        .multimodal = multimodal,
        .interleaved = interleaved,
        .section = {section[0], section[1], section[2]},
        .query = {states.data(), token_stride, head_stride, heads, type},
        .key = {nullptr, 0, 0, 0, type},
    };
    table.rotary_embedding(args, 0, tokens);

    ElementRows expected = before;  // where nothing turns, the very bits
    for (int64_t token = 0; token < tokens; ++token) {
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t start = token * token_stride + head * head_stride;
        for (int64_t pair = 0; pair < half; ++pair) {
          const int64_t row = wide[axis(pair) * tokens + token] * table_stride;
          const double cosine = angles.get(row + pair), sine = angles.get(row + half + pair);
          const int64_t first = start + (is_neox ? pair : 2 * pair);
          const int64_t second = is_neox ? first + half : first + 1;
          const double x = before.get(first), y = before.get(second);
          turned(states, expected, first, x * cosine - y * sine);
          turned(states, expected, second, y * cosine + x * sine);
        }
      }
    }
    EXPECT_EQ(states.bytes(), expected.bytes()) << "an element that does not turn was changed";
  }

  // Within one rounding to the type and a few of float32; then taken for what is expected.
  void turned(const ElementRows& states, ElementRows& expected, int64_t at, double value) const {
    const double allowed = std::abs(value) * rounding_of(type) * 1.001 + 4 * 0x1p-24;
    EXPECT_NEAR(states.get(at), value, allowed) << "element " << at << ", half " << half;
    expected.set(at, states.get(at));
  }
};

class RotaryEmbedding : public EveryTable {};
ANVIL_TEST_EVERY_TABLE(RotaryEmbedding);

TEST_P(RotaryEmbedding, TurnsPairsAndNothingElse) {
  for (ElementType type : kElementTypes) {
    for (ElementType table_type : kElementTypes) {
      for (bool is_neox : {false, true}) {
        for (int64_t half : {1, 3, 8, 15, 16, 17, 32, 40, 64}) {
          for (int64_t beyond : {0, 7}) {
            Rotation{type, table_type, 4, 3, 2 * half + beyond, half, is_neox}.check(table());
          }
        }
      }
    }
  }
}

TEST_P(RotaryEmbedding, MorePairsThanAreTurnedAtOnce) {
  for (bool is_neox : {false, true}) {
    Rotation{ElementType::kBf16, ElementType::kFloat32, 2, 2, 700, 333, is_neox}.check(table());
  }
}

TEST_P(RotaryEmbedding, PairsOfThreePositions) {
  for (bool interleaved : {false, true}) {
    for (bool is_neox : {false, true}) {
      for (const std::vector<int64_t>& section :
           {std::vector<int64_t>{16, 24, 24}, {24, 20, 20}, {64, 0, 0}, {11, 3, 2}, {0, 1, 0}}) {
        const int64_t half = section[0] + section[1] + section[2];
        Rotation{ElementType::kFloat32,
                 ElementType::kFloat32,
                 3,
                 2,
                 2 * half + 4,
                 half,
                 is_neox,
                 true,
                 interleaved,
                 section}
            .check(table());
      }
    }
  }
}

TEST_P(RotaryEmbedding, TurnsKeysTooAndItsRangeOnly) {
  constexpr int64_t kTokens = 4, kHalf = 20, kRow = 2 * kHalf;
  ElementRows angles(ElementType::kFloat32, kPositions * kRow);
  ElementRows query(ElementType::kFp16, kTokens * 2 * kRow),
      key(ElementType::kBf16, kTokens * kRow);
  angles.fill(3);
  query.fill(4);
  key.fill(5);
  const ElementRows query_before = query, key_before = key;
  const std::vector<int64_t> positions = {8, 0, 3, 3};
  const RotaryArgs args = {
      .positions = positions.data(),
      .position_stride = 1,
      .axis_stride = 0,
      .positions_are_int32 = false,
      .table = angles.data(),
      .table_stride = kRow,
      .table_type = ElementType::kFloat32,
      .half = kHalf,
      .is_neox = true,
      .multimodal = false,
      .interleaved = false,
      .section = {kHalf, 0, 0},
      .query = {query.data(), 2 * kRow, kRow, 2, ElementType::kFp16},
      .key = {key.data(), kRow, kRow, 1, ElementType::kBf16},
  };
  table().rotary_embedding(args, 1, 1);
  EXPECT_EQ(query.bytes(), query_before.bytes());
  table().rotary_embedding(args, 1, 3);
  const auto changed = [](const ElementRows& now, const ElementRows& before, int64_t row,
                          int64_t size) {
    int64_t count = 0;
    for (int64_t i = row * size; i < (row + 1) * size; ++i) count += now.get(i) != before.get(i);
    return count;
  };
  for (int64_t token : {0, 3}) {
    EXPECT_EQ(changed(query, query_before, token, 2 * kRow), 0);
    EXPECT_EQ(changed(key, key_before, token, kRow), 0);
  }
  for (int64_t token : {1, 2}) {
    EXPECT_GT(changed(query, query_before, token, 2 * kRow), kRow);
    EXPECT_GT(changed(key, key_before, token, kRow), kRow / 2);
  }
}

}  // namespace
}  // namespace anvil::kernels
