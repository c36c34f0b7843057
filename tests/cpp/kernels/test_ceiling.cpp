// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "element_rows.h"
#include "every_table.h"

namespace anvil::kernels {
namespace {

class Ceiling : public EveryTable {};
ANVIL_TEST_EVERY_TABLE(Ceiling);

int64_t sum_of_words(const std::vector<char>& bytes, int64_t begin, int64_t end) {
  uint64_t sum = 0;
  for (int64_t at = begin; at < end; at += 8) {
    for (int64_t i = at; i < at + 8 && i < end; ++i) {
      const int64_t shift = end - at >= 8 ? 8 * (i - at) : 0;
      sum += static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << shift;
    }
  }
  return static_cast<int64_t>(sum);
}

TEST_P(Ceiling, ReadsEveryByteOnce) {
  std::vector<char> bytes(300'000);
  uint32_t seed = 1;
  for (char& byte : bytes) byte = static_cast<char>((seed = seed * 1664525u + 1013904223u) >> 24);
  for (int64_t end : {0, 1, 7, 8, 9, 63, 64, 65, 130, 4096, 65'535, 65'536, 70'001, 300'000}) {
    for (int64_t begin : {0, 8, 4096, 65'536}) {
      if (begin > end) continue;
      EXPECT_EQ(table().ceiling_read(bytes.data(), begin, end), sum_of_words(bytes, begin, end))
          << begin << " to " << end;
    }
  }
  const int64_t whole = table().ceiling_read(bytes.data(), 0, 300'000);
  for (int64_t at = 0; at < 300'000; at += 997) {
    bytes[at] = static_cast<char>(bytes[at] + 1);
    EXPECT_NE(table().ceiling_read(bytes.data(), 0, 300'000), whole) << "byte " << at;
    bytes[at] = static_cast<char>(bytes[at] - 1);
  }
}

TEST_P(Ceiling, DoesTheOperationsThatItCounts) {
  for (ElementType type : kElementTypes) {
    ElementRows seed(type, 3);
    for (int64_t i = 0; i < 3; ++i) seed.set(i, 1.5f);
    const auto run = [&](int64_t steps) {
      return table().ceiling_arithmetic({seed.data(), 3, type, steps});
    };
    const double per_step = run(1).operations;
    EXPECT_GT(per_step, 0);
    EXPECT_EQ(run(0).operations, 0);
    EXPECT_EQ(run(1000).operations, 1000 * per_step);
    // Accumulators that are halved and added to tend to twice the seed, a multiplication and an
    // addition each; those of dot products, four of each, are back where they began.
    const bool dot_products = type == ElementType::kBf16 && GetParam() == "avx512_bf16";
    const double accumulators = per_step / (dot_products ? 8 : 2);
    EXPECT_EQ(run(0).checksum, 1.5 * accumulators);
    EXPECT_EQ(run(1000).checksum, (dot_products ? 1.5 : 3.0) * accumulators);
    EXPECT_EQ(run(1).checksum, (dot_products ? 1.5 : 2.25) * accumulators);
  }
}

TEST_P(Ceiling, EveryNumberOfTheSeedCounts) {
  for (ElementType type : kElementTypes) {
    ElementRows seed(type, 8);
    seed.fill(1);
    const double before = table().ceiling_arithmetic({seed.data(), 8, type, 3}).checksum;
    for (int64_t i = 0; i < 8; ++i) {
      ElementRows other = seed;
      other.set(i, 4.0f);
      EXPECT_NE(table().ceiling_arithmetic({other.data(), 8, type, 3}).checksum, before) << i;
    }
  }
}

}  // namespace
}  // namespace anvil::kernels
