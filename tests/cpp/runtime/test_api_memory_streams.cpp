// SPDX-License-Identifier: Apache-2.0
// Memory in stream order, as far as it can be seen without holding streams up.
#include <atomic>
#include <cstring>
#include <random>

#include "stream_memory.h"

namespace {

TEST_F(StreamMemory, ComesBackToItsOwnStream) {
  for (size_t bytes : {size_t{100}, size_t{50000}, 3 * kMiB, 40 * kMiB}) {
    const Allocation first = AllocateFor(stream_, bytes);
    EXPECT_EQ(anvilBlockDevice(first.block), 0);
    EXPECT_GE(first.size(), bytes);
    int device = -1;
    EXPECT_OK(anvilPointerGetDevice(&device, first.ptr));
    EXPECT_EQ(device, 0);
    EXPECT_OK(anvilFree(first.block));
    const Allocation foreign = AllocateFor(other_, bytes);
    EXPECT_NE(foreign.ptr, first.ptr);
    const Allocation own = AllocateFor(stream_, bytes);
    EXPECT_EQ(own.ptr, first.ptr);
    EXPECT_OK(anvilFree(foreign.block));
    EXPECT_OK(anvilFree(own.block));
  }
}

TEST_F(StreamMemory, BadArgumentsAreNamed) {
  anvilBlock_t block;
  void* ptr;
  EXPECT_FAILS(anvilMallocAsync(nullptr, &ptr, 1, stream_, 0), ANVIL_ERROR_INVALID_VALUE, "block");
  EXPECT_FAILS(anvilMallocAsync(&block, nullptr, 1, stream_, 0), ANVIL_ERROR_INVALID_VALUE, "ptr");
  EXPECT_FAILS(anvilMallocAsync(&block, &ptr, 1, nullptr, 0), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_FAILS(anvilMallocAsync(&block, &ptr, 1, stream_, 2), ANVIL_ERROR_INVALID_VALUE, "flags");
  EXPECT_OK(anvilMallocAsync(&block, &ptr, 0, stream_, 0));
  EXPECT_EQ(block, nullptr);
  EXPECT_EQ(ptr, nullptr);
  EXPECT_FAILS(anvilBlockRecordStream(block, nullptr), ANVIL_ERROR_INVALID_VALUE, "stream");
  EXPECT_OK(anvilBlockRecordStream(nullptr, stream_));
  EXPECT_EQ(anvilBlockGeneration(nullptr), 0u);
}

TEST_F(StreamMemory, IsZeroWhenAskedFor) {
  for (size_t bytes : {size_t{1}, size_t{500}, size_t{40000}, 3 * kMiB, 40 * kMiB}) {
    for (int round = 0; round < 3; ++round) {
      const Allocation zeros = AllocateFor(stream_, bytes, ANVIL_ALLOC_ZEROED);
      EXPECT_OK(anvilStreamSynchronize(stream_));
      EXPECT_TRUE(zeros.IsFilledWith(0)) << bytes;
      EXPECT_OK(anvilMemsetAsync(zeros.ptr, 0x5a, zeros.size(), stream_));
      EXPECT_OK(anvilFree(zeros.block));
    }
  }
}

TEST_F(StreamMemory, CleanMemoryIsNotFilled) {
  // A fill would have to come before what the host writes after the allocation.
  const Allocation fresh = AllocateFor(stream_, 40 * kMiB, ANVIL_ALLOC_ZEROED);
  EXPECT_EQ(anvilStreamIsBusy(stream_), 0);
  EXPECT_TRUE(fresh.IsFilledWith(0));
  EXPECT_OK(anvilFree(fresh.block));
}

TEST_F(StreamMemory, GenerationsTellLivesApart) {
  const Allocation first = AllocateFor(stream_, 1000);
  const uint64_t generation = anvilBlockGeneration(first.block);
  EXPECT_EQ(anvilBlockGeneration(first.block), generation);
  EXPECT_OK(anvilFree(first.block));
  EXPECT_NE(anvilBlockGeneration(first.block), generation);
  const Allocation second = AllocateFor(stream_, 1000);
  ASSERT_EQ(second.block, first.block);
  EXPECT_NE(anvilBlockGeneration(second.block), generation);
  EXPECT_OK(anvilFree(second.block));
}

TEST_F(StreamMemory, OtherStreamsUseIsWaitedFor) {
  const Allocation shared = AllocateFor(stream_, kMiB);
  for (int i = 0; i < 3; ++i) EXPECT_OK(anvilBlockRecordStream(shared.block, other_));
  EXPECT_OK(anvilBlockRecordStream(shared.block, stream_));
  EXPECT_OK(anvilFree(shared.block));
  EXPECT_FAILS(anvilFree(shared.block), ANVIL_ERROR_INVALID_VALUE, "already been freed");
  EXPECT_FAILS(anvilBlockRecordStream(shared.block, other_), ANVIL_ERROR_INVALID_VALUE, "freed");
  EXPECT_OK(anvilStreamSynchronize(other_));
  EXPECT_EQ(Held(), held_before_);
  const Allocation again = AllocateFor(stream_, kMiB);
  EXPECT_EQ(again.ptr, shared.ptr);
  EXPECT_OK(anvilFree(again.block));
}

TEST_F(StreamMemory, BlocksForUseAtOnceWaitForStreamsToo) {
  Allocation block;
  void* ptr;
  ASSERT_OK(anvilMalloc(&block.block, &ptr, kMiB, 0, 0));
  EXPECT_OK(anvilBlockRecordStream(block.block, other_));
  EXPECT_OK(anvilFree(block.block));
  EXPECT_OK(anvilStreamSynchronize(other_));
  EXPECT_EQ(Held(), held_before_);
}

TEST_F(StreamMemory, OfTheRunningCommandIsItsOwn) {
  const Allocation outside = AllocateFor(stream_, kMiB);
  EXPECT_OK(anvilFree(outside.block));
  Allocation kept;
  EXPECT_OK(Do(stream_, [&] {
    // What the stream freed may be used by commands that are still to come.
    const Allocation first = AllocateFor(stream_, kMiB, ANVIL_ALLOC_ZEROED);
    EXPECT_NE(first.ptr, outside.ptr);
    EXPECT_TRUE(first.IsFilledWith(0));
    std::memset(first.ptr, 1, first.size());
    EXPECT_OK(anvilFree(first.block));
    kept = AllocateFor(stream_, kMiB, ANVIL_ALLOC_ZEROED);
    EXPECT_EQ(kept.ptr, first.ptr) << "the command itself is done with it";
    EXPECT_TRUE(kept.IsFilledWith(0));
  }));
  EXPECT_OK(anvilStreamSynchronize(stream_));
  EXPECT_OK(anvilMemsetAsync(kept.ptr, 1, kept.size(), stream_));
  EXPECT_OK(anvilFree(kept.block));
}

TEST_F(StreamMemory, OfAStreamThatIsGoneGoesToTheNextOne) {
  anvilStream_t passing;
  ASSERT_OK(anvilStreamCreate(&passing, 0, 0));
  const Allocation held = AllocateFor(passing, kMiB);
  const Allocation freed = AllocateFor(passing, kMiB);
  EXPECT_OK(anvilBlockRecordStream(held.block, other_));
  EXPECT_OK(anvilFree(freed.block));
  EXPECT_OK(anvilStreamSynchronize(passing));
  EXPECT_OK(anvilStreamDestroy(passing));
  ASSERT_OK(anvilStreamCreate(&passing, 0, 0));
  const Allocation next = AllocateFor(passing, kMiB);
  EXPECT_EQ(next.ptr, freed.ptr);
  EXPECT_OK(anvilFree(held.block));
  EXPECT_OK(anvilFree(next.block));
  EXPECT_OK(anvilDeviceSynchronize(0));
  EXPECT_OK(anvilStreamDestroy(passing));
}

TEST_F(StreamMemory, EmptyCacheReturnsAllOfIt) {
  for (anvilStream_t stream : {stream_, other_}) {
    const Allocation block = AllocateFor(stream, 20 * kMiB);
    EXPECT_OK(anvilMemsetAsync(block.ptr, 1, block.size(), stream));
    EXPECT_OK(anvilFree(block.block));
  }
  EXPECT_GE(Reserved(), static_cast<int64_t>(40 * kMiB));
  EXPECT_OK(anvilMemEmptyCache(0));
  EXPECT_EQ(Reserved(), 0);
}

TEST_F(StreamMemory, CachedForOneStreamIsFreeForAnother) {
  const Allocation first = AllocateFor(stream_, 200 * kMiB);
  EXPECT_OK(anvilFree(first.block));
  size_t free_bytes, total;
  ASSERT_OK(anvilMemGetInfo(&free_bytes, &total, 0));
  EXPECT_EQ(free_bytes, total);
  const Allocation second = AllocateFor(other_, 150 * kMiB);
  EXPECT_OK(anvilFree(second.block));
  anvilBlock_t block;
  void* ptr;
  EXPECT_FAILS(anvilMallocAsync(&block, &ptr, 300 * kMiB, stream_, 0), ANVIL_ERROR_OUT_OF_MEMORY,
               "300 MiB asked for");
  EXPECT_EQ(block, nullptr);
  EXPECT_EQ(ptr, nullptr);
}

TEST_F(StreamMemory, IsNeverSharedByTwoOwners) {
  // Every block is filled with a mark of its own and looked at by a later command of the same
  // stream, some after a use by the other stream, while all of it is allocated and freed at once.
  std::mt19937_64 random(1);
  std::atomic<int> mixed_up{0};
  ASSERT_OK(anvilMemResetPeakStats(0));
  int64_t live = Held(), peak = live;
  const auto check = [&mixed_up](anvilStream_t stream, Allocation block, char mark) {
    EXPECT_OK(Do(stream, [&mixed_up, block, mark, size = block.size()] {
      if (block.ptr[0] != mark || block.ptr[size / 2] != mark || block.ptr[size - 1] != mark) {
        ++mixed_up;
      }
    }));
  };
  anvilEvent_t event;
  ASSERT_OK(anvilEventCreate(&event, 0));
  struct Held {
    Allocation block;
    anvilStream_t stream;
    char mark;
  };
  std::vector<Held> held;
  for (int step = 0; step < 6000; ++step) {
    if (held.empty() || (held.size() < 40 && random() % 2 == 0)) {
      const anvilStream_t stream = random() % 2 == 0 ? stream_ : other_;
      const size_t bytes = 1 + random() % (random() % 10 == 0 ? kMiB : 20000);
      held.push_back({AllocateFor(stream, bytes), stream, static_cast<char>(random())});
      const Held& made = held.back();
      live += static_cast<int64_t>(made.block.size());
      peak = std::max(peak, live);
      EXPECT_OK(anvilMemsetAsync(made.block.ptr, made.mark, made.block.size(), stream));
      continue;
    }
    std::swap(held[random() % held.size()], held.back());
    const Held last = held.back();
    held.pop_back();
    live -= static_cast<int64_t>(last.block.size());
    check(last.stream, last.block, last.mark);
    if (random() % 4 == 0) {
      const anvilStream_t second = last.stream == stream_ ? other_ : stream_;
      EXPECT_OK(anvilEventRecord(event, last.stream));
      EXPECT_OK(anvilStreamWaitEvent(second, event));
      check(second, last.block, last.mark);
      EXPECT_OK(anvilBlockRecordStream(last.block.block, second));
      EXPECT_OK(anvilFree(last.block.block));
      EXPECT_OK(anvilStreamSynchronize(second));  // so that the shadow is exact
    } else {
      EXPECT_OK(anvilFree(last.block.block));
    }
    ASSERT_EQ(::Held(), live);
    if (step % 1000 == 999) {
      EXPECT_OK(anvilMemEmptyCache(0));
    }
  }
  EXPECT_EQ(Stats().allocated_bytes.peak, peak);
  for (const Held& last : held) EXPECT_OK(anvilFree(last.block.block));
  EXPECT_OK(anvilDeviceSynchronize(0));
  EXPECT_OK(anvilEventDestroy(event));
  EXPECT_EQ(mixed_up, 0);
}

}  // namespace
