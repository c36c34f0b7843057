// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "api_checks.h"

namespace {

anvilHostStats Stats() {
  anvilHostStats stats{};
  EXPECT_OK(anvilHostGetStats(&stats));
  return stats;
}

TEST(HostMemory, IsKnownFromItsFirstByteToItsLast) {
  for (size_t bytes : {size_t{1}, size_t{4096}, size_t{1000000}, size_t{40} << 20}) {
    void* ptr = nullptr;
    ASSERT_OK(anvilHostAlloc(&ptr, bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(ptr) % 4096, 0u);
    char* begin = static_cast<char*>(ptr);
    std::memset(begin, 1, bytes);
    EXPECT_TRUE(anvilHostIsPinned(begin));
    EXPECT_TRUE(anvilHostIsPinned(begin + bytes / 2));
    EXPECT_TRUE(anvilHostIsPinned(begin + bytes - 1));
    EXPECT_FALSE(anvilHostIsPinned(&ptr));  // below the stack lie all mappings
    EXPECT_OK(anvilHostFree(ptr));
    EXPECT_FALSE(anvilHostIsPinned(begin));  // cached, but nobody's
  }
}

TEST(HostMemory, OtherMemoryIsNotPinned) {
  std::vector<char> ordinary(10000);
  EXPECT_FALSE(anvilHostIsPinned(ordinary.data()));
  EXPECT_FALSE(anvilHostIsPinned(nullptr));
  anvilBlock_t block;
  void* ptr;
  ASSERT_OK(anvilMalloc(&block, &ptr, 100, 0, 0));
  EXPECT_FALSE(anvilHostIsPinned(ptr));
  EXPECT_OK(anvilFree(block));
}

TEST(HostMemory, IsCachedAndGivenBack) {
  ASSERT_OK(anvilHostEmptyCache());
  const int64_t reserved = Stats().reserved_bytes.current;
  void* first = nullptr;
  ASSERT_OK(anvilHostAlloc(&first, 100000));
  ASSERT_OK(anvilHostFree(first));
  EXPECT_GE(Stats().reserved_bytes.current, reserved + 100000);
  void* second = nullptr;
  ASSERT_OK(anvilHostAlloc(&second, 99000));
  EXPECT_EQ(second, first);
  // Far smaller: not worth a mapping of that size.
  void* small = nullptr;
  ASSERT_OK(anvilHostFree(second));
  ASSERT_OK(anvilHostAlloc(&small, 5000));
  EXPECT_NE(small, first);
  ASSERT_OK(anvilHostFree(small));
  ASSERT_OK(anvilHostEmptyCache());
  EXPECT_EQ(Stats().reserved_bytes.current, reserved);
}

TEST(HostMemory, StatisticsAreExact) {
  ASSERT_OK(anvilHostEmptyCache());
  ASSERT_OK(anvilHostResetPeakStats());
  ASSERT_OK(anvilHostResetAccumulatedStats());
  const anvilHostStats before = Stats();
  EXPECT_EQ(before.allocation.allocated, 0);
  void* a = nullptr;
  void* b = nullptr;
  ASSERT_OK(anvilHostAlloc(&a, 4096));
  ASSERT_OK(anvilHostAlloc(&b, 8192));
  ASSERT_OK(anvilHostFree(a));
  const anvilHostStats stats = Stats();
  EXPECT_EQ(stats.allocation.current, before.allocation.current + 1);
  EXPECT_EQ(stats.allocation.allocated, 2);
  EXPECT_EQ(stats.allocation.freed, 1);
  EXPECT_EQ(stats.allocated_bytes.current, before.allocated_bytes.current + 8192);
  EXPECT_EQ(stats.allocated_bytes.peak, before.allocated_bytes.current + 12288);
  EXPECT_EQ(stats.reserved_bytes.current, before.reserved_bytes.current + 12288);
  ASSERT_OK(anvilHostFree(b));
}

TEST(HostMemory, MistakesAreErrors) {
  void* ptr = &ptr;
  EXPECT_OK(anvilHostFree(nullptr));
  EXPECT_OK(anvilHostAlloc(&ptr, 0));
  EXPECT_EQ(ptr, nullptr);
  EXPECT_FAILS(anvilHostAlloc(nullptr, 10), ANVIL_ERROR_INVALID_VALUE, "ptr");
  EXPECT_FAILS(anvilHostAlloc(&ptr, SIZE_MAX), ANVIL_ERROR_OUT_OF_MEMORY, "refused");
  EXPECT_FAILS(anvilHostAlloc(&ptr, SIZE_MAX / 8), ANVIL_ERROR_OUT_OF_MEMORY, "refused");
  EXPECT_FAILS(anvilHostFree(&ptr), ANVIL_ERROR_INVALID_VALUE, "not the start");
  ASSERT_OK(anvilHostAlloc(&ptr, 10000));
  EXPECT_FAILS(anvilHostFree(static_cast<char*>(ptr) + 4096), ANVIL_ERROR_INVALID_VALUE, "start");
  EXPECT_OK(anvilHostFree(ptr));
  EXPECT_FAILS(anvilHostFree(ptr), ANVIL_ERROR_INVALID_VALUE, "not the start");
}

TEST(HostMemory, ThreadsDoNotShareAllocations) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread] {
      for (int round = 0; round < 300; ++round) {
        void* ptr = nullptr;
        const size_t bytes = 1000 + static_cast<size_t>(round) * 37;
        ASSERT_OK(anvilHostAlloc(&ptr, bytes));
        std::memset(ptr, thread, bytes);
        EXPECT_TRUE(anvilHostIsPinned(static_cast<char*>(ptr) + bytes - 1));
        for (size_t i = 0; i < bytes; i += 511) {
          ASSERT_EQ(static_cast<char*>(ptr)[i], static_cast<char>(thread));
        }
        ASSERT_OK(anvilHostFree(ptr));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
