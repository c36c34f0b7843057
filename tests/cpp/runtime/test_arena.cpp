// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "arena.h"
#include "fake_streams.h"
#include "memory_source.h"
#include "units.h"

namespace anvil {
namespace {

HeapRecords* NewRecords() {
  static std::vector<HeapRecords*>& all = *new std::vector<HeapRecords*>;
  return all.emplace_back(new HeapRecords);
}

// An arena on its own, growing without a limit but its addresses.
class ArenaTest : public testing::Test {
 protected:
  explicit ArenaTest(size_t capacity = kGiB) : arena_(&records_, this, nullptr, capacity, -1, 3) {}

  Block* Take(size_t bytes) {
    Block* block = arena_.Allocate(bytes);
    if (block != nullptr) return block;
    const size_t growth = arena_.GrowthFor(bytes);
    EXPECT_NE(growth, SIZE_MAX);
    EXPECT_TRUE(arena_.Grow(bytes));
    block = arena_.Allocate(bytes);
    EXPECT_NE(block, nullptr);
    return block;
  }

  // Never destroyed, like all records of blocks.
  HeapRecords& records_ = *NewRecords();
  Arena arena_;
};

TEST_F(ArenaTest, IsBackedAsFarAsItHasBeenUsed) {
  EXPECT_EQ(arena_.reserved_bytes(), 0u);
  EXPECT_EQ(arena_.Allocate(100), nullptr);
  EXPECT_EQ(arena_.GrowthFor(100), 2 * kMiB);
  Block* block = Take(100);
  EXPECT_EQ(block->size, 128u);
  EXPECT_EQ(arena_.reserved_bytes(), 2 * kMiB);
  EXPECT_EQ(arena_.allocated_bytes(), 128u);
  EXPECT_EQ(OwnerOf(block->ptr), 3);
  EXPECT_EQ(OwnerOf(block->ptr + 2 * kMiB - 1), 3);
  EXPECT_EQ(OwnerOf(block->ptr + 2 * kMiB), -1) << "addresses without memory are nobody's";
  Block* large = Take(5 * kMiB);
  EXPECT_EQ(arena_.reserved_bytes(), 6 * kMiB);
  std::memset(large->ptr, 1, large->size);
  EXPECT_EQ(arena_.GrowthFor(kGiB + 1), SIZE_MAX);
  EXPECT_EQ(arena_.GrowthFor(SIZE_MAX), SIZE_MAX);
  arena_.Free(large);
  arena_.Free(block);
  EXPECT_EQ(arena_.allocated_bytes(), 0u);
  EXPECT_EQ(arena_.reserved_bytes(), 6 * kMiB);
}

TEST_F(ArenaTest, PlacesAreTheLowestThatFit) {
  ArenaZone zone(&records_, this, &arena_, kGiB, -1, 3);
  ASSERT_TRUE(zone.Grow(4 * kMiB));
  Block* first = zone.Allocate(kMiB);
  std::byte* const base = first->ptr;
  Block* second = zone.Allocate(kMiB);
  Block* third = zone.Allocate(kMiB);
  EXPECT_EQ(third->ptr, base + 2 * kMiB);
  zone.Free(first);
  Block* small = zone.Allocate(64);
  EXPECT_EQ(small->ptr, base);
  Block* page = zone.Allocate(kPageSize);  // on a page, past the small block
  EXPECT_EQ(page->ptr, base + kPageSize);
  Block* between = zone.Allocate(64);
  EXPECT_EQ(between->ptr, base + 64);
  Block* wide = zone.Allocate(kMiB);
  EXPECT_EQ(wide->ptr, base + 3 * kMiB);
  EXPECT_EQ(zone.Allocate(kMiB), nullptr);
  for (Block* block : {second, small, page, third, between, wide}) zone.Free(block);
  Block* whole = zone.Allocate(4 * kMiB);
  EXPECT_EQ(whole->ptr, base) << "neighbours coalesce";
  zone.Free(whole);
}

TEST_F(ArenaTest, SmallBlocksAreOutOfTheWayOfLargeOnes) {
  Block* large = Take(16 * kMiB);
  std::byte* const base = large->ptr;
  Block* small = Take(256 * kKiB);
  arena_.Free(large);
  Block* larger = Take(20 * kMiB);  // where the first was, though the small one is still held
  EXPECT_EQ(larger->ptr, base);
  EXPECT_EQ(arena_.reserved_bytes(), 22 * kMiB);
  arena_.Free(larger);
  arena_.Free(small);
  EXPECT_EQ(arena_.allocated_bytes(), 0u);
}

TEST_F(ArenaTest, BlocksNeverOverlap) {
  std::mt19937_64 random(3);
  std::map<std::byte*, Block*> held;
  for (int step = 0; step < 20000; ++step) {
    if (held.empty() || (held.size() < 150 && random() % 2 == 0)) {
      const size_t bytes = 1 + random() % (random() % 2 == 0 ? 2000 : 300 * kKiB);
      Block* block = Take(bytes);
      ASSERT_GE(block->size, bytes);
      const size_t alignment = bytes < kPageSize ? 64 : kPageSize;
      ASSERT_EQ(reinterpret_cast<uintptr_t>(block->ptr) % alignment, 0u);
      const auto next = held.lower_bound(block->ptr);
      if (next != held.end()) {
        ASSERT_LE(block->ptr + block->size, next->first);
      }
      if (next != held.begin()) {
        const Block* before = std::prev(next)->second;
        ASSERT_LE(before->ptr + before->size, block->ptr);
      }
      held[block->ptr] = block;
    } else {
      auto victim = held.begin();
      std::advance(victim, random() % held.size());
      arena_.Free(victim->second);
      held.erase(victim);
    }
    if (step % 500 == 0) {
      size_t total = 0;
      for (const auto& [ptr, block] : held) total += block->size;
      ASSERT_EQ(arena_.allocated_bytes(), total);
    }
  }
  for (const auto& [ptr, block] : held) arena_.Free(block);
  EXPECT_EQ(arena_.allocated_bytes(), 0u);
}

// ---------------------------------------------------------------- graphs that share an arena

class DecodeSteps : public ArenaTest,
                    public testing::WithParamInterface<std::tuple<const char*, size_t>> {
 protected:
  DecodeSteps() : ArenaTest(4 * kGiB) {}

  // What a decode step of a transformer (hidden 4096, 32 heads, 8 of them for keys and values, MLP
  // 14336, vocabulary 128256) takes and gives back for a batch, in order.
  void Capture(size_t batch) {
    constexpr size_t kHalf = 2;
    const size_t hidden = batch * 4096 * kHalf;
    const auto free = [this](std::initializer_list<Block*> blocks) {
      for (Block* block : blocks) arena_.Free(block);
    };
    Block* positions = Take(batch * 8);
    Block* residual = Take(hidden);
    for (int layer = 0; layer < 32; ++layer) {
      Block* normed = Take(hidden);
      free({Take(batch * 4)});  // a variance
      Block* qkv = Take(batch * (4096 + 2 * 1024) * kHalf);
      free({normed});
      Block* query = Take(hidden);
      Block* key = Take(batch * 1024 * kHalf);
      Block* scores = Take(batch * 32 * 512 * 4);
      Block* sums = Take(batch * 32 * 4);
      Block* attention = Take(hidden);
      free({scores, sums, qkv, query, key});
      Block* projected = Take(hidden);
      free({attention});
      Block* sum = Take(hidden);
      free({projected, residual});
      normed = Take(hidden);
      Block* gate_up = Take(batch * 2 * 14336 * kHalf);
      free({normed});
      Block* activated = Take(batch * 14336 * kHalf);
      free({gate_up});
      Block* down = Take(hidden);
      free({activated});
      residual = Take(hidden);
      free({sum, down});
    }
    Block* last = Take(hidden);
    free({residual});
    Block* logits = Take(batch * 128256 * 4);
    outputs_.push_back(Take(batch * std::get<1>(GetParam())));
    free({last, logits, positions});
  }

  std::vector<Block*> outputs_;  // held, as the user of a graph does
};

TEST_P(DecodeSteps, ShareTheMemoryOfTheLargest) {
  std::vector<size_t> batches;
  for (size_t batch = 1; batch <= 64; ++batch) batches.push_back(batch);
  Capture(batches.back());
  const size_t own_need = arena_.reserved_bytes();
  arena_.Free(outputs_.back());
  outputs_.clear();
  ASSERT_EQ(arena_.allocated_bytes(), 0u);

  const std::string order = std::get<0>(GetParam());
  if (order == "descending") std::reverse(batches.begin(), batches.end());
  if (order == "shuffled") std::shuffle(batches.begin(), batches.end(), std::mt19937_64(1));
  for (size_t batch : batches) Capture(batch);
  EXPECT_LE(arena_.reserved_bytes(), own_need + own_need / 5) << own_need;
  for (Block* block : outputs_) arena_.Free(block);
}

// Held for each sequence: its token, or a little more than that.
INSTANTIATE_TEST_SUITE_P(Orders, DecodeSteps,
                         testing::Combine(testing::Values("ascending", "descending", "shuffled"),
                                          testing::Values(size_t{8}, size_t{1024})));

}  // namespace
}  // namespace anvil
