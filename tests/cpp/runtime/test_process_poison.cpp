// SPDX-License-Identifier: Apache-2.0
// ANVIL_DEBUG_POISON: memory without contents that matter shows as NaN.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "child_process.h"

namespace {

bool IsPoisoned(const void* ptr, size_t bytes) {
  const auto* begin = static_cast<const unsigned char*>(ptr);
  return std::all_of(begin, begin + bytes, [](unsigned char byte) { return byte == 0xFF; });
}

// Two words of memory of each kind of block.
constexpr size_t kSizes[] = {256, size_t{100} << 10, size_t{40} << 20};

TEST(PoisonDeathTest, IsInNewAndInFreedMemory) {
  const auto child = [&] {
    UseOneSmallDevice();
    setenv("ANVIL_DEBUG_POISON", "1", 1);
    anvilStream_t stream;
    REQUIRE_OK(anvilStreamGetDefault(&stream, 0));
    for (size_t bytes : kSizes) {
      for (anvilStream_t order : {static_cast<anvilStream_t>(nullptr), stream}) {
        const auto allocate = [&](anvilBlock_t* block, unsigned flags) {
          void* ptr;
          if (order == nullptr) {
            REQUIRE_OK(anvilMalloc(block, &ptr, bytes, 0, flags));
          } else {
            REQUIRE_OK(anvilMallocAsync(block, &ptr, bytes, order, flags));
          }
          REQUIRE_OK(anvilStreamSynchronize(stream));
          return ptr;
        };
        anvilBlock_t block;
        void* ptr = allocate(&block, ANVIL_ALLOC_DEFAULT);
        REQUIRE(IsPoisoned(ptr, anvilBlockSize(block)));
        REQUIRE(std::isnan(*static_cast<float*>(ptr)));
        std::memset(ptr, 1, bytes);
        REQUIRE_OK(anvilFree(block));
        REQUIRE_OK(anvilStreamSynchronize(stream));
        REQUIRE(IsPoisoned(ptr, bytes));  // cached: still mapped
        const char* zeros = static_cast<char*>(allocate(&block, ANVIL_ALLOC_ZEROED));
        REQUIRE(std::all_of(zeros, zeros + bytes, [](char byte) { return byte == 0; }));
        REQUIRE_OK(anvilFree(block));
      }
    }
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

TEST(PoisonDeathTest, ComesAfterTheUsesOfOtherStreams) {
  const auto child = [&] {
    UseOneSmallDevice();
    setenv("ANVIL_DEBUG_POISON", "1", 1);
    anvilStream_t stream, other;
    REQUIRE_OK(anvilStreamGetDefault(&stream, 0));
    REQUIRE_OK(anvilStreamCreate(&other, 0, 0));
    constexpr size_t kBytes = 1000;
    anvilBlock_t block;
    void *ptr, *copy;
    REQUIRE_OK(anvilHostAlloc(&copy, kBytes));
    for (int round = 0; round < 100; ++round) {
      REQUIRE_OK(anvilMallocAsync(&block, &ptr, kBytes, stream, ANVIL_ALLOC_ZEROED));
      REQUIRE_OK(anvilStreamSynchronize(stream));
      REQUIRE_OK(anvilMemcpyAsync(copy, ptr, kBytes, other));
      REQUIRE_OK(anvilBlockRecordStream(block, other));
      REQUIRE_OK(anvilFree(block));
      REQUIRE_OK(anvilDeviceSynchronize(0));
      REQUIRE(static_cast<char*>(copy)[0] == 0 && static_cast<char*>(copy)[kBytes - 1] == 0);
    }
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

TEST(PoisonDeathTest, IsInTheMemoryOfGraphsAtEveryReplay) {
  const auto child = [&] {
    UseOneSmallDevice();
    setenv("ANVIL_DEBUG_POISON", "1", 1);
    anvilStream_t stream;
    REQUIRE_OK(anvilStreamGetDefault(&stream, 0));
    anvilGraphPool_t pool;
    REQUIRE_OK(anvilGraphPoolCreate(&pool, 0));
    REQUIRE_OK(anvilStreamBeginCapture(stream, pool));
    anvilBlock_t block;
    void* ptr;
    REQUIRE_OK(anvilMallocAsync(&block, &ptr, 1000, stream, ANVIL_ALLOC_DEFAULT));
    anvilGraph_t graph;
    REQUIRE_OK(anvilStreamEndCapture(stream, &graph));
    for (int round = 0; round < 2; ++round) {
      REQUIRE_OK(anvilGraphLaunch(graph, stream));
      REQUIRE_OK(anvilStreamSynchronize(stream));
      REQUIRE(IsPoisoned(ptr, 1000));
      std::memset(ptr, 1, 1000);
    }
    // Freed, it is left alone: a replay may have written what the program still reads.
    REQUIRE_OK(anvilFree(block));
    REQUIRE_OK(anvilStreamSynchronize(stream));
    REQUIRE(!IsPoisoned(ptr, 1000));
    REQUIRE_OK(anvilGraphDestroy(graph));
    REQUIRE_OK(anvilGraphPoolDestroy(pool));
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

}  // namespace
