// SPDX-License-Identifier: Apache-2.0
//
// Both products of low-rank adapters, with every operand at the edge of its memory.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "element_rows.h"
#include "every_table.h"
#include "guarded_memory.h"

namespace anvil::kernels {
namespace {

class Lora : public EveryTable {};
ANVIL_TEST_EVERY_TABLE(Lora);

constexpr int64_t kAdapters = 2, kTokens = 9;
// Of two adapters; tokens 2 and 7 have none.
const std::vector<int32_t> kFirst = {8, 0, 3, 1, 6}, kSecond = {4, 5};

// Values that have the same neighbours in every run, in guarded memory.
struct Operand {
  Operand(ElementType type, int64_t size, Place place, unsigned seed)
      : values(type, size), memory(static_cast<size_t>(size * bytes_of(type)), place) {
    values.fill(seed);
    std::memcpy(memory.data(), values.data(), memory.bytes());
  }
  static int64_t bytes_of(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }

  double at(int64_t i) const { return values.get(i); }

  ElementRows values;
  GuardedMemory memory;
};

std::vector<LoraRun> runs() {
  return {{0, kFirst.data(), static_cast<int64_t>(kFirst.size())},
          {1, kSecond.data(), static_cast<int64_t>(kSecond.size())}};
}

int64_t blocks(int64_t count, int64_t size) { return (count + size - 1) / size; }

TEST_P(Lora, ShrinksTheTokensOfEachAdapter) {
  const std::vector<LoraRun> of = runs();
  for (ElementType type : kElementTypes) {
    for (int64_t depth : {1, 15, 16, 33}) {
      for (int64_t rank : {1, 4, 9}) {
        for (Place place : kPlaces) {
          Operand input(type, kTokens * depth, place, 1);
          Operand weight(type, kAdapters * rank * depth, place, 2);
          GuardedMemory shrunk(static_cast<size_t>(kTokens * rank * 4), place);
          const std::vector<int32_t> ranks = {static_cast<int32_t>(rank), 1};
          const LoraSlice slice = {weight.memory.data(), rank * depth, depth, depth, 0};
          const LoraShrinkArgs args = {
              .batch = {of.data(), 2, &slice, 1, type, ranks.data(), kAdapters, rank},
              .input = input.memory.data(),
              .input_type = type,
              .input_stride = depth,
              .depth = depth,
              .shrunk = shrunk.as<float>(),
              .slice_stride = kTokens * rank,
              .token_stride = rank,
              .scale = 0.5f,
          };
          table().lora_shrink(args, 0, 2 * blocks(rank, kLoraRankBlock));
          for (const LoraRun& run : of) {
            for (int64_t t = 0; t < run.count; ++t) {
              for (int64_t r = 0; r < rank; ++r) {
                double sum = 0;
                for (int64_t k = 0; k < depth && r < ranks[run.adapter]; ++k) {
                  sum += input.at(run.tokens[t] * depth + k) *
                         weight.at((run.adapter * rank + r) * depth + k);
                }
                EXPECT_NEAR(shrunk.as<float>()[run.tokens[t] * rank + r], 0.5 * sum, 1e-4);
              }
            }
          }
          // What has no adapter stays.
          EXPECT_TRUE(std::isnan(shrunk.as<float>()[2 * rank]));
          EXPECT_TRUE(std::isnan(shrunk.as<float>()[7 * rank]));
          EXPECT_TRUE(shrunk.surroundings_are_intact());
        }
      }
    }
  }
}

TEST_P(Lora, ExpandsIntoTheColumnsOfEachSlice) {
  const std::vector<LoraRun> of = runs();
  for (ElementType type : kElementTypes) {
    for (int64_t columns : {1, 16, 75, 140}) {
      for (int64_t rank : {1, 8}) {
        for (Place place : kPlaces) {
          const int64_t width = columns + 3;  // two slices: all but one, and one
          Operand shrunk(ElementType::kFloat32, 2 * kTokens * rank, place, 1);
          Operand first(type, kAdapters * rank * columns, place, 2);
          Operand second(type, kAdapters * rank, place, 3);
          Operand output(type, kTokens * width, place, 4);
          const LoraSlice slices[] = {
              {first.memory.data(), rank * columns, columns, columns, 1},
              {second.memory.data(), rank, 1, 1, columns + 1},
          };
          const LoraExpandArgs args = {
              .batch = {of.data(), 2, slices, 2, type, nullptr, kAdapters, rank},
              .shrunk = shrunk.memory.as<float>(),
              .slice_stride = kTokens * rank,
              .token_stride = rank,
              .output = output.memory.data(),
              .output_type = type,
              .output_stride = width,
              .add = true,
          };
          table().lora_expand(args, 0, 2 * (blocks(columns, kLoraColumns) + 1));
          ElementRows found(type, kTokens * width);
          std::memcpy(found.data(), output.memory.data(), output.memory.bytes());
          std::vector<double> expected;
          for (int64_t i = 0; i < kTokens * width; ++i) expected.push_back(output.at(i));
          for (const LoraRun& run : of) {
            for (int64_t t = 0; t < run.count; ++t) {
              for (int64_t r = 0; r < rank; ++r) {
                const int64_t token = run.tokens[t];
                for (int64_t c = 0; c < columns; ++c) {
                  expected[token * width + 1 + c] +=
                      shrunk.at(token * rank + r) *
                      first.at((run.adapter * rank + r) * columns + c);
                }
                expected[token * width + columns + 1] +=
                    shrunk.at((kTokens + token) * rank + r) * second.at(run.adapter * rank + r);
              }
            }
          }
          for (int64_t i = 0; i < kTokens * width; ++i) {
            const double allowed = 1e-4 + std::abs(expected[i]) * rounding_of(type);
            EXPECT_NEAR(found.get(i), expected[i], allowed) << "element " << i;
          }
          EXPECT_TRUE(output.memory.surroundings_are_intact());
        }
      }
    }
  }
}

}  // namespace
}  // namespace anvil::kernels
