// SPDX-License-Identifier: Apache-2.0
// Pools in stream order: which memory is handed out to whom, and when it may be unmapped.
#include <algorithm>
#include <cstring>
#include <random>

#include "fake_streams.h"
#include "memory_source.h"
#include "memory_tag.h"
#include "units.h"

namespace anvil {
namespace {

Block* AllocateFor(uint64_t stream, DeviceAllocator& allocator, size_t bytes) {
  FakeStreams streams;
  for (uint64_t id = 0; id <= stream; ++id) streams.list.push_back({id, true});
  return Allocate(allocator, {bytes, kDefaultTag, stream}, streams);
}

TEST(AllocatorStreams, MemoryComesBackToItsOwnStreamOnly) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  for (size_t bytes : {size_t{100}, 300 * kKiB, 40 * kMiB}) {
    Block* block = AllocateFor(1, allocator, bytes);
    std::byte* const address = block->ptr;
    Free(allocator, block);
    Block* other = AllocateFor(2, allocator, bytes);
    Block* immediate = Allocate(allocator, bytes);
    Block* own = AllocateFor(1, allocator, bytes);
    EXPECT_NE(other->ptr, address);
    EXPECT_NE(immediate->ptr, address);
    EXPECT_EQ(own->ptr, address);
    for (Block* held : {other, immediate, own}) Free(allocator, held);
  }
  const std::vector<anvilTagStats> tags = allocator.GetTagStats();
  ASSERT_EQ(tags.size(), 1u);  // one entry for all streams of a tag
  EXPECT_EQ(static_cast<int64_t>(tags[0].reserved_bytes), Reserved(allocator));
}

TEST(AllocatorStreams, ANewStreamTakesOverThePoolOfOneThatIsGone) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  Block* block = AllocateFor(1, allocator, kMiB);
  Block* held = AllocateFor(1, allocator, kMiB);
  std::byte* const address = block->ptr;
  Free(allocator, block);
  FakeStreams streams;
  streams.list = {{0, false}, {1, false}, {2, false}};
  Block* second = Allocate(allocator, {kMiB, kDefaultTag, 2}, streams);
  EXPECT_NE(second->ptr, address) << "stream 1 is still there";
  streams.list = {{0, false}, {2, false}, {3, false}};
  Block* third = Allocate(allocator, {kMiB, kDefaultTag, 3}, streams);
  EXPECT_EQ(third->ptr, address);
  EXPECT_EQ(allocator.StreamOf(third), 3u);
  EXPECT_EQ(allocator.StreamOf(held), 3u);
  for (Block* each : {held, second, third}) Free(allocator, each);
}

TEST(AllocatorStreams, IdleMemoryIsUnmappedAfterAWait) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  Free(allocator, AllocateFor(1, allocator, kMiB));
  FakeStreams streams;
  streams.list = {{1, true}};
  streams.on_wait = [&] { EXPECT_EQ(Reserved(allocator), static_cast<int64_t>(2 * kMiB)); };
  allocator.EmptyCache(streams);
  EXPECT_EQ(streams.waits, 1);
  EXPECT_EQ(Reserved(allocator), 0);
}

TEST(AllocatorStreams, WhatIsFreedDuringTheWaitStays) {
  // Another thread's commands may still use it: they were not there to be waited for.
  DeviceAllocator& allocator = NewAllocator(kGiB);
  for (size_t bytes : {size_t{100}, 2 * kMiB, 40 * kMiB}) {
    Block* before = AllocateFor(1, allocator, bytes);
    Block* during = AllocateFor(2, allocator, bytes);
    std::byte* const address = during->ptr;
    Free(allocator, before);
    FakeStreams streams;
    streams.on_wait = [&] { Free(allocator, during); };
    allocator.EmptyCache(streams);
    EXPECT_EQ(OwnerOf(address), kDevice);
    EXPECT_EQ(Reserved(allocator), static_cast<int64_t>(std::max(2 * kMiB, bytes)));
    std::memset(address, 1, bytes);
    EmptyCache(allocator);
    EXPECT_EQ(Reserved(allocator), 0);
  }
}

TEST(AllocatorStreams, InsideACommandOnlyWhatNoStreamUsesIsUnmapped) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  Block* busy = AllocateFor(1, allocator, 40 * kMiB);
  Block* idle = AllocateFor(2, allocator, 50 * kMiB);
  Block* immediate = Allocate(allocator, 60 * kMiB);
  std::byte *const used = busy->ptr, *const unused = idle->ptr, *const free = immediate->ptr;
  for (Block* block : {busy, idle, immediate}) Free(allocator, block);
  FakeStreams streams;
  streams.inside_command = true;
  streams.list = {{1, true}, {2, false}};
  allocator.EmptyCache(streams);
  EXPECT_EQ(OwnerOf(used), kDevice);
  EXPECT_EQ(OwnerOf(unused), -1);
  EXPECT_EQ(OwnerOf(free), -1);
}

TEST(AllocatorStreams, ALimitIsMetByWaiting) {
  DeviceAllocator& allocator = NewAllocator(100 * kMiB);
  Free(allocator, AllocateFor(1, allocator, 60 * kMiB));
  FakeStreams streams;
  streams.list = {{1, true}, {2, false}};
  Block* block = Allocate(allocator, {80 * kMiB, kDefaultTag, 2}, streams);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(streams.waits, 1);
  EXPECT_EQ(allocator.GetStats().num_alloc_retries, 1);
  Free(allocator, block);
  // A request that cannot be met at all does not wait.
  bool dirty;
  EXPECT_EQ(allocator.Allocate({101 * kMiB, kDefaultTag, 2}, streams, &block, &dirty),
            ANVIL_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(streams.waits, 1);
  // Inside a command it is out of memory: the stream may use what is cached.
  streams.inside_command = true;
  streams.list = {{2, true}};
  EXPECT_EQ(allocator.Allocate({90 * kMiB}, streams, &block, &dirty), ANVIL_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(std::string(anvilGetLastErrorMessage()).find("cached 80 MiB"), std::string::npos)
      << anvilGetLastErrorMessage();
}

TEST(AllocatorStreams, WhatAnotherThreadFreedDuringTheWaitWillDo) {
  DeviceAllocator& allocator = NewAllocator(100 * kMiB);
  Block* held = AllocateFor(1, allocator, 60 * kMiB);
  std::byte* const address = held->ptr;
  FakeStreams streams;
  streams.on_wait = [&] { Free(allocator, held); };
  Block* block = Allocate(allocator, {60 * kMiB, kDefaultTag, 1}, streams);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->ptr, address);
  Free(allocator, block);
}

TEST(AllocatorStreams, HeldBackBlocksCountUntilTheyAreReturned) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  Block* block = AllocateFor(1, allocator, kMiB);
  const uint64_t generation = block->generation;
  bool noted = false, held_back = false;
  ASSERT_EQ(allocator.RecordUse(block, {kDevice, 1}, &noted), ANVIL_SUCCESS);
  EXPECT_FALSE(noted) << "its own stream";
  for (uint64_t stream : {2, 2, 3, 2, 3}) {
    ASSERT_EQ(allocator.RecordUse(block, {kDevice, stream}, &noted), ANVIL_SUCCESS);
    EXPECT_TRUE(noted);
  }
  // Streams of two devices may have the same number.
  ASSERT_EQ(allocator.RecordUse(block, {kDevice + 1, 1}, &noted), ANVIL_SUCCESS);
  EXPECT_EQ(block->uses->list.size(), 3u);
  ASSERT_EQ(allocator.Free(block, false, false, &held_back), ANVIL_SUCCESS);
  EXPECT_TRUE(held_back);
  EXPECT_NE(block->generation, generation);
  EXPECT_EQ(allocator.GetStats().allocated_bytes.current, static_cast<int64_t>(kMiB));
  ExpectFreedBefore(allocator, block);
  EXPECT_EQ(allocator.RecordUse(block, {kDevice, 4}, &noted), ANVIL_ERROR_INVALID_VALUE);
  delete std::exchange(block->uses, nullptr);
  allocator.Return(block, false);
  EXPECT_EQ(allocator.GetStats().allocated_bytes.current, 0);
  ExpectFreedBefore(allocator, block);
}

TEST(AllocatorStreams, GenerationsOfARecordNeverComeBack) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  std::vector<std::pair<Block*, uint64_t>> seen;
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<Block*> blocks;
    for (int i = 0; i < 20; ++i) {
      Block* block = AllocateFor(random() % 3, allocator, 1 + random() % (256 * kKiB));
      blocks.push_back(block);
      seen.push_back({block, block->generation});
    }
    for (Block* block : blocks) Free(allocator, block);
    if (round % 10 == 0) EmptyCache(allocator);
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
}

TEST(AllocatorStreams, StatisticsAreExactOverAllPools) {
  // A shadow of what is held has to agree with the figures at every step, the peak included.
  DeviceAllocator& allocator = NewAllocator(512 * kMiB);
  FakeStreams streams;
  for (uint64_t id = 0; id < 5; ++id) streams.list.push_back({id, false});
  const int tags[] = {kDefaultTag, InternTag("statistics")};
  std::mt19937_64 random(11);
  std::vector<Block*> held;
  int64_t live = 0, peak = 0, requested = 0;
  for (int step = 0; step < 30000; ++step) {
    if (held.empty() || (held.size() < 200 && random() % 2 == 0)) {
      const uint64_t pool = random() % 6;
      const size_t bytes = 1 + random() % (random() % 50 == 0 ? 33 * kMiB : 64 * kKiB);
      Block* block = nullptr;
      bool dirty;
      const anvilError_t status = allocator.Allocate(
          {bytes, tags[random() % 2], pool == 5 ? DeviceAllocator::kImmediate : pool}, streams,
          &block, &dirty);
      if (status == ANVIL_SUCCESS) {
        held.push_back(block);
        live += static_cast<int64_t>(block->size);
        requested += static_cast<int64_t>(bytes);
        peak = std::max(peak, live);
      } else {
        ASSERT_EQ(status, ANVIL_ERROR_OUT_OF_MEMORY);
      }
    } else {
      std::swap(held[random() % held.size()], held.back());
      live -= static_cast<int64_t>(held.back()->size);
      requested -= static_cast<int64_t>(held.back()->requested);
      Free(allocator, held.back());
      held.pop_back();
    }
    const anvilMemoryStats stats = allocator.GetStats();
    ASSERT_EQ(stats.allocated_bytes.current, live);
    ASSERT_EQ(stats.allocated_bytes.peak, peak);
    ASSERT_EQ(stats.requested_bytes.current, requested);
    ASSERT_LE(stats.reserved_bytes.peak, static_cast<int64_t>(512 * kMiB));
    ASSERT_GE(stats.reserved_bytes.current, live);
    if (step % 100 != 0) continue;
    int64_t by_tag = 0, reserved = 0;
    for (const anvilTagStats& tag : allocator.GetTagStats()) {
      by_tag += static_cast<int64_t>(tag.allocated_bytes);
      reserved += static_cast<int64_t>(tag.reserved_bytes);
    }
    ASSERT_EQ(by_tag, live);
    ASSERT_EQ(reserved, stats.reserved_bytes.current);
  }
  for (Block* block : held) Free(allocator, block);
  EmptyCache(allocator);
  EXPECT_EQ(Reserved(allocator), 0);
}

}  // namespace
}  // namespace anvil
