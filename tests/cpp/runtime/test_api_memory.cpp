// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "api_checks.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::vector<anvilTagStats> TagStats(int device) {
  size_t count = 0;
  EXPECT_OK(anvilMemGetTagStats(nullptr, 0, &count, device));
  std::vector<anvilTagStats> tags(count);
  EXPECT_OK(anvilMemGetTagStats(tags.data(), tags.size(), &count, device));
  return tags;
}

anvilTagStats StatsOf(const std::string& tag, int device) {
  for (const anvilTagStats& entry : TagStats(device)) {
    if (entry.tag == tag) return entry;
  }
  return {};
}

TEST(Memory, BlocksKnowTheirDeviceAndSize) {
  for (int device = 0; device < DeviceCount(); ++device) {
    anvilBlock_t block;
    void* ptr;
    ASSERT_OK(anvilMalloc(&block, &ptr, 1000, device, ANVIL_ALLOC_DEFAULT));
    EXPECT_EQ(anvilBlockDevice(block), device);
    EXPECT_GE(anvilBlockSize(block), 1000u);
    int owner = -1;
    EXPECT_OK(anvilPointerGetDevice(&owner, static_cast<char*>(ptr) + 999));
    EXPECT_EQ(owner, device);
    EXPECT_OK(anvilFree(block));
  }
  int owner;
  EXPECT_FAILS(anvilPointerGetDevice(&owner, &owner), ANVIL_ERROR_INVALID_VALUE, "address");
}

TEST(Memory, NothingIsNothing) {
  anvilBlock_t block = reinterpret_cast<anvilBlock_t>(1);
  void* ptr = &block;
  ASSERT_OK(anvilMalloc(&block, &ptr, 0, 0, ANVIL_ALLOC_DEFAULT));
  EXPECT_EQ(block, nullptr);
  EXPECT_EQ(ptr, nullptr);
  EXPECT_OK(anvilFree(nullptr));
  EXPECT_EQ(anvilBlockSize(nullptr), 0u);
  EXPECT_EQ(anvilBlockDevice(nullptr), -1);
}

TEST(Memory, ZeroedMemoryIsZeroHoweverOftenItWasUsed) {
  for (size_t bytes : {size_t{1}, size_t{500}, size_t{40000}, 3 * kMiB, 40 * kMiB}) {
    for (int round = 0; round < 3; ++round) {
      anvilBlock_t block;
      void* ptr;
      ASSERT_OK(anvilMalloc(&block, &ptr, bytes, 0, ANVIL_ALLOC_ZEROED));
      const size_t size = anvilBlockSize(block);
      const char* begin = static_cast<char*>(ptr);
      EXPECT_TRUE(std::all_of(begin, begin + size, [](char c) { return c == 0; })) << bytes;
      std::memset(ptr, 0x5a, size);
      EXPECT_OK(anvilFree(block));
    }
  }
}

TEST(Memory, BadArgumentsAreNamed) {
  anvilBlock_t block;
  void* ptr;
  EXPECT_FAILS(anvilMalloc(nullptr, &ptr, 1, 0, 0), ANVIL_ERROR_INVALID_VALUE, "block");
  EXPECT_FAILS(anvilMalloc(&block, nullptr, 1, 0, 0), ANVIL_ERROR_INVALID_VALUE, "ptr");
  EXPECT_FAILS(anvilMalloc(&block, &ptr, 1, 0, 8), ANVIL_ERROR_INVALID_VALUE, "flags");
  EXPECT_FAILS(anvilMalloc(&block, &ptr, 1, 50, 0), ANVIL_ERROR_INVALID_DEVICE, "50");
  EXPECT_FAILS(anvilMemGetStats(nullptr, 0), ANVIL_ERROR_INVALID_VALUE, "stats");
}

TEST(Memory, InfoFollowsWhatIsHeld) {
  ASSERT_OK(anvilMemEmptyCache(0));
  size_t before, total;
  ASSERT_OK(anvilMemGetInfo(&before, &total, 0));
  EXPECT_EQ(total, 256 * kMiB);
  EXPECT_EQ(before, total);
  anvilBlock_t block;
  void* ptr;
  ASSERT_OK(anvilMalloc(&block, &ptr, 64 * kMiB, 0, 0));
  size_t during, after;
  ASSERT_OK(anvilMemGetInfo(&during, &total, 0));
  EXPECT_EQ(during, before - 64 * kMiB);
  EXPECT_OK(anvilFree(block));
  ASSERT_OK(anvilMemGetInfo(&after, &total, 0));  // cached is as good as free
  EXPECT_EQ(after, before);
  anvilMemoryStats stats;
  ASSERT_OK(anvilMemGetStats(&stats, 0));
  EXPECT_EQ(stats.reserved_bytes.current, static_cast<int64_t>(64 * kMiB));
  ASSERT_OK(anvilMemEmptyCache(0));
  ASSERT_OK(anvilMemGetStats(&stats, 0));
  EXPECT_EQ(stats.reserved_bytes.current, 0);
}

TEST(Memory, PeaksAndTotalsCanBeReset) {
  anvilBlock_t block;
  void* ptr;
  ASSERT_OK(anvilMalloc(&block, &ptr, 10 * kMiB, 0, 0));
  ASSERT_OK(anvilFree(block));
  anvilMemoryStats stats;
  ASSERT_OK(anvilMemGetStats(&stats, 0));
  EXPECT_GE(stats.allocated_bytes.peak, static_cast<int64_t>(10 * kMiB));
  ASSERT_OK(anvilMemResetPeakStats(0));
  ASSERT_OK(anvilMemResetAccumulatedStats(0));
  ASSERT_OK(anvilMemGetStats(&stats, 0));
  EXPECT_EQ(stats.allocated_bytes.peak, stats.allocated_bytes.current);
  EXPECT_EQ(stats.reserved_bytes.peak, stats.reserved_bytes.current);
  EXPECT_EQ(stats.allocated_bytes.allocated, 0);
  EXPECT_EQ(stats.allocated_bytes.freed, 0);
}

TEST(Memory, TheLimitIsHardAndTheMessageNamesTheTags) {
  ASSERT_OK(anvilMemPushTag("weights"));
  anvilBlock_t weights, block;
  void* ptr;
  ASSERT_OK(anvilMalloc(&weights, &ptr, 200 * kMiB, 0, 0));
  ASSERT_OK(anvilMemPopTag());
  EXPECT_FAILS(anvilMalloc(&block, &ptr, 100 * kMiB, 0, 0), ANVIL_ERROR_OUT_OF_MEMORY,
               "weights 200 MiB");
  EXPECT_EQ(block, nullptr);
  EXPECT_EQ(ptr, nullptr);
  EXPECT_OK(anvilFree(weights));
  ASSERT_OK(anvilMalloc(&block, &ptr, 100 * kMiB, 0, 0));  // weights' cache gave way
  EXPECT_OK(anvilFree(block));
}

TEST(MemoryTags, NestAndReturnTheirMappings) {
  ASSERT_OK(anvilMemEmptyCache(0));
  anvilBlock_t blocks[3];
  void* ptr;
  ASSERT_OK(anvilMalloc(&blocks[0], &ptr, 100, 0, 0));
  ASSERT_OK(anvilMemPushTag("kv_cache"));
  ASSERT_OK(anvilMalloc(&blocks[1], &ptr, 100, 0, 0));
  ASSERT_OK(anvilMemPushTag("graph"));
  ASSERT_OK(anvilMalloc(&blocks[2], &ptr, 100, 0, 0));
  ASSERT_OK(anvilMemPopTag());
  ASSERT_OK(anvilMemPopTag());
  for (const char* tag : {"default", "kv_cache", "graph"}) {
    EXPECT_EQ(StatsOf(tag, 0).allocated_bytes, 128u) << tag;
    EXPECT_EQ(StatsOf(tag, 0).reserved_bytes, 2 * kMiB) << tag;
  }
  // A block goes back to the pool it came from, whatever tag the freeing thread is under.
  ASSERT_OK(anvilMemPushTag("graph"));
  EXPECT_OK(anvilFree(blocks[1]));
  ASSERT_OK(anvilMemPopTag());
  EXPECT_EQ(StatsOf("kv_cache", 0).allocated_bytes, 0u);
  ASSERT_OK(anvilMemEmptyCache(0));
  EXPECT_EQ(StatsOf("kv_cache", 0).reserved_bytes, 0u);
  EXPECT_EQ(StatsOf("graph", 0).reserved_bytes, 2 * kMiB);
  EXPECT_OK(anvilFree(blocks[0]));
  EXPECT_OK(anvilFree(blocks[2]));
}

TEST(MemoryTags, ArePerThread) {
  ASSERT_OK(anvilMemPushTag("main_thread"));
  std::thread([] {
    EXPECT_FAILS(anvilMemPopTag(), ANVIL_ERROR_INVALID_VALUE, "pushed no tag");
    anvilBlock_t block;
    void* ptr;
    EXPECT_OK(anvilMalloc(&block, &ptr, 1, 0, 0));
    EXPECT_GT(StatsOf("default", 0).allocated_bytes, 0u);
    EXPECT_OK(anvilFree(block));
  }).join();
  ASSERT_OK(anvilMemPopTag());
  EXPECT_EQ(StatsOf("main_thread", 0).reserved_bytes, 0u);
}

TEST(MemoryTags, BadTagsAreRefused) {
  EXPECT_FAILS(anvilMemPushTag(nullptr), ANVIL_ERROR_INVALID_VALUE, "1 to 63");
  EXPECT_FAILS(anvilMemPushTag(""), ANVIL_ERROR_INVALID_VALUE, "1 to 63");
  EXPECT_FAILS(anvilMemPushTag(std::string(64, 'x').c_str()), ANVIL_ERROR_INVALID_VALUE, "63");
  EXPECT_OK(anvilMemPushTag(std::string(63, 'x').c_str()));
  int depth = 1;
  while (anvilMemPushTag("deep") == ANVIL_SUCCESS) ++depth;
  EXPECT_FAILS(anvilMemPushTag("deep"), ANVIL_ERROR_INVALID_VALUE, "nested");
  while (depth-- > 0) EXPECT_OK(anvilMemPopTag());
}

}  // namespace
