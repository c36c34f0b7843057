// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstring>
#include <random>
#include <thread>

#include "allocator.h"
#include "fake_streams.h"
#include "memory_source.h"
#include "memory_tag.h"
#include "units.h"

namespace anvil {
namespace {

size_t ResidentPages(const void* base, size_t bytes) {
  std::vector<unsigned char> pages(bytes / kPageSize);
  EXPECT_EQ(mincore(const_cast<void*>(base), bytes, pages.data()), 0);
  return static_cast<size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
}

TEST(Allocator, EverySizeIsLargeEnoughAlignedAndWritable) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  std::vector<Block*> blocks;
  for (size_t base = 1; base <= 64 * kMiB; base *= 2) {
    for (size_t bytes : {base - 1, base, base + 1, base + base / 2}) {
      if (bytes == 0) continue;
      Block* block = Allocate(allocator, bytes);
      ASSERT_NE(block, nullptr);
      ASSERT_GE(block->size, bytes);
      // No more waste than a quarter, a granule of 64 bytes, or a page for more than 32 KiB.
      ASSERT_LE(block->size, std::max({bytes + bytes / 4, bytes + 63}));
      const size_t alignment = bytes > 32 * kKiB ? kPageSize : 64;
      ASSERT_EQ(reinterpret_cast<uintptr_t>(block->ptr) % alignment, 0u) << bytes;
      std::memset(block->ptr, 0xab, std::min<size_t>(bytes, 4 * kMiB));
      blocks.push_back(block);
    }
  }
  std::sort(blocks.begin(), blocks.end(), [](Block* a, Block* b) { return a->ptr < b->ptr; });
  for (size_t i = 1; i < blocks.size(); ++i) {
    ASSERT_LE(blocks[i - 1]->ptr + blocks[i - 1]->size, blocks[i]->ptr) << "blocks overlap";
  }
  for (Block* block : blocks) Free(allocator, block);
  EmptyCache(allocator);
  EXPECT_EQ(Reserved(allocator), 0);
}

TEST(Allocator, FreedMemoryIsReused) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  for (size_t bytes : {size_t{100}, size_t{20000}, size_t{300000}, 40 * kMiB}) {
    Block* first = Allocate(allocator, bytes);
    const std::byte* address = first->ptr;
    Free(allocator, first);
    const int64_t reserved = Reserved(allocator);
    Block* second = Allocate(allocator, bytes);
    EXPECT_EQ(second->ptr, address) << bytes;
    EXPECT_EQ(Reserved(allocator), reserved);
    Free(allocator, second);
  }
}

TEST(Allocator, NeighboursCoalesceInAnyOrder) {
  const std::vector<std::vector<int>> orders = {
      {0, 1, 2, 3}, {3, 2, 1, 0}, {0, 2, 1, 3}, {1, 3, 0, 2}, {2, 0, 3, 1}};
  for (const std::vector<int>& order : orders) {
    DeviceAllocator& allocator = NewAllocator(2 * kMiB);  // one segment, no more
    std::vector<Block*> quarters;
    for (int i = 0; i < 4; ++i) quarters.push_back(Allocate(allocator, 512 * kKiB));
    EXPECT_EQ(Reserved(allocator), static_cast<int64_t>(2 * kMiB));
    for (int index : order) Free(allocator, quarters[static_cast<size_t>(index)]);
    Block* whole = Allocate(allocator, 2 * kMiB);
    ASSERT_NE(whole, nullptr);
    Free(allocator, whole);
    EXPECT_EQ(allocator.GetStats().num_alloc_retries, 0);
  }
}

TEST(Allocator, EmptySpansReturnToThePages) {
  DeviceAllocator& allocator = NewAllocator(2 * kMiB);
  std::vector<Block*> blocks;
  for (size_t i = 0; i < 2 * kMiB / 256; ++i) blocks.push_back(Allocate(allocator, 256));
  EXPECT_EQ(Reserved(allocator), static_cast<int64_t>(2 * kMiB));
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
  for (Block* block : blocks) Free(allocator, block);
  // All but the span that is kept at hand is free for other sizes again.
  Block* large = Allocate(allocator, kMiB);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(allocator.GetStats().num_alloc_retries, 0);
  Free(allocator, large);
  EmptyCache(allocator);
  EXPECT_EQ(Reserved(allocator), 0);
}

TEST(Allocator, HugeBlocksAreReusedUpToAQuarterOfWaste) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  Block* block = Allocate(allocator, 100 * kMiB);
  const std::byte* address = block->ptr;
  Free(allocator, block);
  Block* near = Allocate(allocator, 80 * kMiB);
  EXPECT_EQ(near->ptr, address);
  Free(allocator, near);
  Block* far = Allocate(allocator, 78 * kMiB);
  EXPECT_NE(far->ptr, address);
  EXPECT_EQ(far->size, 78 * kMiB);
  // Of several, the one that fits best.
  Block* best = Allocate(allocator, 82 * kMiB);
  EXPECT_EQ(best->ptr, address);
  Free(allocator, far);
  Free(allocator, best);
  Block* small = Allocate(allocator, 70 * kMiB);
  EXPECT_EQ(small->size, 78 * kMiB);
  Free(allocator, small);
}

TEST(Allocator, DirtIsKnown) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  for (size_t bytes : {size_t{64}, size_t{100000}, 48 * kMiB}) {
    bool dirty = true;
    Block* block = Allocate(allocator, bytes, 0, &dirty);
    EXPECT_FALSE(dirty) << bytes;
    Free(allocator, block);
    block = Allocate(allocator, bytes, 0, &dirty);
    EXPECT_TRUE(dirty) << bytes;
    Free(allocator, block);
    EmptyCache(allocator);
  }
  // A clean piece next to a dirty one stays clean until they are one.
  bool dirty = true;
  Block* left = Allocate(allocator, kMiB, 0, &dirty);
  Free(allocator, left);
  Block* whole = Allocate(allocator, 2 * kMiB, 0, &dirty);
  EXPECT_TRUE(dirty);
  Free(allocator, whole);
  // Chunks of a span that reuses pages are not clean either.
  Block* chunk = Allocate(allocator, 64, 0, &dirty);
  EXPECT_TRUE(dirty);
  Free(allocator, chunk);
}

TEST(Allocator, PagesOfAReleasedSpanAreDirty) {
  DeviceAllocator& allocator = NewAllocator(2 * kMiB);
  Block* chunk = Allocate(allocator, 64);
  Block* keeps_the_segment = Allocate(allocator, kMiB);
  Free(allocator, chunk);
  EmptyCache(allocator);
  bool dirty = false;
  Block* pages = Allocate(allocator, 64 * kKiB, kDefaultTag, &dirty);
  EXPECT_TRUE(dirty);
  EXPECT_LT(pages->ptr, keeps_the_segment->ptr);
  Free(allocator, pages);
  Free(allocator, keeps_the_segment);
}

TEST(Allocator, FreshMemoryIsNotTouched) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  Block* block = Allocate(allocator, 256 * kMiB);
  EXPECT_EQ(ResidentPages(block->ptr, block->size), 0u);
  Free(allocator, block);
  EXPECT_EQ(ResidentPages(block->ptr, block->size), 0u);
}

TEST(Allocator, EmptyCacheUnmaps) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  Block* small = Allocate(allocator, 100);
  Block* huge = Allocate(allocator, 64 * kMiB);
  std::byte* address = huge->ptr;
  EXPECT_EQ(OwnerOf(address + 1000), kDevice);
  Free(allocator, huge);
  EXPECT_EQ(OwnerOf(address + 1000), kDevice);  // cached memory is still the device's
  EmptyCache(allocator);
  EXPECT_EQ(OwnerOf(address + 1000), -1);
  unsigned char page;
  EXPECT_EQ(mincore(address, kPageSize, &page), -1);
  // The segment of the small block stays.
  EXPECT_EQ(Reserved(allocator), static_cast<int64_t>(2 * kMiB));
  EXPECT_EQ(allocator.GetStats().segment.current, 1);
  Free(allocator, small);
  EmptyCache(allocator);
  EXPECT_EQ(allocator.GetStats().segment.current, 0);
}

TEST(Allocator, OwnersAreFoundAtBothEnds) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  Block* block = Allocate(allocator, 64 * kMiB);
  EXPECT_EQ(OwnerOf(block->ptr), kDevice);
  EXPECT_EQ(OwnerOf(block->ptr + block->size - 1), kDevice);
  int local;
  EXPECT_EQ(OwnerOf(&local), -1);
  EXPECT_EQ(OwnerOf(nullptr), -1);
  Free(allocator, block);
}

TEST(Allocator, LimitHoldsAcrossTagsAndTheCacheGivesWay) {
  DeviceAllocator& allocator = NewAllocator(100 * kMiB);
  FakeStreams streams;
  const int kv_cache = InternTag("kv_cache"), graph = InternTag("graph");
  Block* weights = Allocate(allocator, 40 * kMiB, kDefaultTag);
  Block* cache = Allocate(allocator, 50 * kMiB, kv_cache);
  Block* block = nullptr;
  bool dirty;
  EXPECT_EQ(allocator.Allocate({40 * kMiB, graph}, streams, &block, &dirty),
            ANVIL_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(block, nullptr);
  EXPECT_EQ(allocator.GetStats().num_ooms, 1);
  // What one tag has cached is unmapped for the other.
  Free(allocator, cache);
  const int64_t retries = allocator.GetStats().num_alloc_retries;
  block = Allocate(allocator, 60 * kMiB, graph);
  EXPECT_EQ(allocator.GetStats().num_alloc_retries, retries + 1);
  EXPECT_EQ(Reserved(allocator), static_cast<int64_t>(100 * kMiB));
  Free(allocator, block);
  Free(allocator, weights);
}

TEST(Allocator, ALargeSegmentDoesNotStandInTheWayOfASmallRequest) {
  // Near the limit a segment is as large as the request needs, not as large as it would like.
  DeviceAllocator& allocator = NewAllocator(66 * kMiB);
  Block* big = Allocate(allocator, 64 * kMiB);
  Block* small = Allocate(allocator, 100);
  ASSERT_NE(small, nullptr);
  EXPECT_EQ(allocator.GetStats().num_alloc_retries, 0);
  Free(allocator, small);
  Free(allocator, big);
}

TEST(Allocator, OutOfMemorySaysWhatIsHeldAndWhatToDo) {
  DeviceAllocator& allocator = NewAllocator(100 * kMiB);
  FakeStreams streams;
  Block* held = Allocate(allocator, 40 * kMiB);
  Block* block = nullptr;
  bool dirty;
  for (size_t bytes : {80 * kMiB, 3 * kGiB, SIZE_MAX}) {
    ASSERT_EQ(allocator.Allocate({bytes}, streams, &block, &dirty), ANVIL_ERROR_OUT_OF_MEMORY);
    const std::string message = anvilGetLastErrorMessage();
    for (const std::string& part :
         {FormatBytes(bytes), std::string("anvil:7"), std::string("Limit 100 MiB"),
          std::string("held 40 MiB (default 40 MiB)"), std::string("cached 0 bytes"),
          std::string("ANVIL_DEVICE_MEMORY"), std::string("gpu_memory_utilization"),
          std::string("max_model_len"), std::string("max_num_seqs")}) {
      EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
    }
  }
  EXPECT_EQ(allocator.GetStats().num_ooms, 3);
  Free(allocator, held);
}

TEST(Allocator, FreeingTwiceIsAnError) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  for (size_t bytes : {size_t{64}, size_t{100000}, 64 * kMiB}) {
    // The middle one of three is one with its neighbours by the time it is freed again.
    std::array<Block*, 3> blocks;
    for (Block*& block : blocks) block = Allocate(allocator, bytes);
    for (Block* block : blocks) Free(allocator, block);
    for (Block* block : blocks) ExpectFreedBefore(allocator, block);
    EmptyCache(allocator);
    for (Block* block : blocks) ExpectFreedBefore(allocator, block);
  }
  EXPECT_EQ(allocator.GetStats().allocation.current, 0);
}

TEST(Allocator, FreeBytesAreBoundedByTheLimitAndTheHost) {
  EXPECT_EQ(FreeBytes(100, {0, 0}, 1000), 100u);
  EXPECT_EQ(FreeBytes(100, {60, 0}, 1000), 40u);
  EXPECT_EQ(FreeBytes(100, {60, 20}, 1000), 60u);
  EXPECT_EQ(FreeBytes(100, {60, 20}, 10), 30u);
  EXPECT_EQ(FreeBytes(100, {0, 0}, 0), 0u);
}

// ---------------------------------------------------------------- statistics

struct Shadow {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;

  void Add(int64_t amount) {
    current += amount;
    allocated += amount;
    peak = std::max(peak, current);
  }
  void Remove(int64_t amount) {
    current -= amount;
    freed += amount;
  }
};

void ExpectEqual(const anvilStat& stat, const Shadow& shadow, const char* name) {
  EXPECT_EQ(stat.current, shadow.current) << name;
  EXPECT_EQ(stat.peak, shadow.peak) << name;
  EXPECT_EQ(stat.allocated, shadow.allocated) << name;
  EXPECT_EQ(stat.freed, shadow.freed) << name;
}

size_t RandomSize(std::mt19937_64& random) {
  // Mostly small, as tensors are; sometimes medium, rarely huge.
  const int kind = static_cast<int>(random() % 100);
  if (kind < 70) return 1 + random() % 4096;
  if (kind < 90) return 1 + random() % (256 * kKiB);
  if (kind < 98) return 1 + random() % (4 * kMiB);
  return 1 + random() % (48 * kMiB);
}

TEST(AllocatorStats, AreExactUnderRandomOperations) {
  DeviceAllocator& allocator = NewAllocator(4 * kGiB);
  const std::array<int, 3> tags = {kDefaultTag, InternTag("weights"), InternTag("kv_cache")};
  std::mt19937_64 random(20240607);
  Shadow allocation, allocated, requested;
  std::vector<std::pair<Block*, size_t>> held;
  for (int step = 0; step < 30000; ++step) {
    if (held.empty() || (held.size() < 400 && random() % 2 == 0)) {
      const size_t bytes = RandomSize(random);
      Block* block = Allocate(allocator, bytes, tags[random() % tags.size()]);
      held.push_back({block, bytes});
      allocation.Add(1);
      allocated.Add(static_cast<int64_t>(block->size));
      requested.Add(static_cast<int64_t>(bytes));
    } else {
      std::swap(held[random() % held.size()], held.back());
      const auto [block, bytes] = held.back();
      allocation.Remove(1);
      allocated.Remove(static_cast<int64_t>(block->size));
      requested.Remove(static_cast<int64_t>(bytes));
      Free(allocator, block);
      held.pop_back();
    }
    if (step % 5000 == 2500) {
      allocator.ResetPeakStats();
      for (Shadow* shadow : {&allocation, &allocated, &requested}) shadow->peak = shadow->current;
    }
    if (step % 5000 == 4000) EmptyCache(allocator);
    if (step % 100 != 0) continue;
    const anvilMemoryStats stats = allocator.GetStats();
    ExpectEqual(stats.allocation, allocation, "allocation");
    ExpectEqual(stats.allocated_bytes, allocated, "allocated_bytes");
    ExpectEqual(stats.requested_bytes, requested, "requested_bytes");
    EXPECT_GE(stats.reserved_bytes.current, stats.allocated_bytes.current);
    EXPECT_EQ(stats.reserved_bytes.allocated - stats.reserved_bytes.freed,
              stats.reserved_bytes.current);
    size_t by_tag = 0, reserved_by_tag = 0;
    for (const anvilTagStats& tag : allocator.GetTagStats()) {
      by_tag += tag.allocated_bytes;
      reserved_by_tag += tag.reserved_bytes;
    }
    EXPECT_EQ(static_cast<int64_t>(by_tag), allocated.current);
    EXPECT_EQ(static_cast<int64_t>(reserved_by_tag), stats.reserved_bytes.current);
  }
  for (const auto& [block, bytes] : held) Free(allocator, block);
  EmptyCache(allocator);
  allocator.ResetAccumulatedStats();
  const anvilMemoryStats stats = allocator.GetStats();
  for (const anvilStat& stat : {stats.allocation, stats.segment, stats.allocated_bytes,
                                stats.requested_bytes, stats.reserved_bytes}) {
    EXPECT_EQ(stat.current, 0);
    EXPECT_EQ(stat.allocated, 0);
    EXPECT_EQ(stat.freed, 0);
  }
}

TEST(AllocatorStats, ThreadsShareNoMemoryAndLoseNoCount) {
  constexpr int kThreads = 4;
  DeviceAllocator& allocator = NewAllocator(4 * kGiB);
  std::array<int64_t, kThreads> bytes_held{}, bytes_total{}, count_total{};
  const std::array<int, 2> tags = {kDefaultTag, InternTag("weights")};
  std::barrier barrier(kThreads + 1);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(static_cast<uint64_t>(thread));
      std::vector<Block*> held;
      const auto mark = static_cast<unsigned char>(thread + 1);
      const auto check_and_free = [&](Block* block) {
        // Both ends of the block still say whose it is.
        EXPECT_EQ(static_cast<unsigned char>(block->ptr[0]), mark);
        EXPECT_EQ(static_cast<unsigned char>(block->ptr[block->requested - 1]), mark);
        bytes_held[static_cast<size_t>(thread)] -= static_cast<int64_t>(block->size);
        Free(allocator, block);
      };
      for (int round = 0; round < 3; ++round) {
        for (int step = 0; step < 3000; ++step) {
          if (held.empty() || (held.size() < 100 && random() % 2 == 0)) {
            Block* block = Allocate(allocator, RandomSize(random), tags[random() % tags.size()]);
            std::memset(block->ptr, mark, 1);
            std::memset(block->ptr + block->requested - 1, mark, 1);
            held.push_back(block);
            bytes_held[static_cast<size_t>(thread)] += static_cast<int64_t>(block->size);
            bytes_total[static_cast<size_t>(thread)] += static_cast<int64_t>(block->size);
            ++count_total[static_cast<size_t>(thread)];
          } else {
            std::swap(held[random() % held.size()], held.back());
            check_and_free(held.back());
            held.pop_back();
          }
          if (step % 1000 == 999) EmptyCache(allocator);
        }
        barrier.arrive_and_wait();  // everybody has stopped:
        barrier.arrive_and_wait();  // the main thread has looked
      }
      for (Block* block : held) check_and_free(block);
    });
  }
  for (int round = 0; round < 3; ++round) {
    barrier.arrive_and_wait();
    const auto sum = [](const auto& parts) {
      int64_t total = 0;
      for (int64_t part : parts) total += part;
      return total;
    };
    const anvilMemoryStats stats = allocator.GetStats();
    EXPECT_EQ(stats.allocated_bytes.current, sum(bytes_held));
    EXPECT_EQ(stats.allocated_bytes.allocated, sum(bytes_total));
    EXPECT_EQ(stats.allocation.allocated, sum(count_total));
    EXPECT_GE(stats.allocated_bytes.peak, stats.allocated_bytes.current);
    barrier.arrive_and_wait();
  }
  for (std::thread& thread : threads) thread.join();
  const anvilMemoryStats stats = allocator.GetStats();
  EXPECT_EQ(stats.allocated_bytes.current, 0);
  EXPECT_EQ(stats.allocation.allocated, stats.allocation.freed);
  EmptyCache(allocator);
  EXPECT_EQ(Reserved(allocator), 0);
}

}  // namespace
}  // namespace anvil
