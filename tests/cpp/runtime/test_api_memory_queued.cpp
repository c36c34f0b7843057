// SPDX-License-Identifier: Apache-2.0
// Memory in stream order while commands that use it are queued: these tests hold streams up, and
// need them to be asynchronous.
#include <cstring>
#include <memory>
#include <thread>

#include "stream_memory.h"

namespace {

class QueuedMemory : public StreamMemory {
 protected:
  void TearDown() override {
    gate_->Open();
    StreamMemory::TearDown();
  }

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
};

TEST_F(QueuedMemory, IsHandedOutAgainForTheSameStreamOnly) {
  const Allocation first = AllocateFor(stream_, kMiB);
  EXPECT_OK(WaitAt(stream_, gate_));
  EXPECT_OK(anvilMemsetAsync(first.ptr, 1, first.size(), stream_));
  bool untouched = false;
  EXPECT_OK(Do(stream_, [&] { untouched = first.IsFilledWith(1); }));
  EXPECT_OK(anvilFree(first.block));
  EXPECT_EQ(Held(), held_before_);
  const Allocation foreign = AllocateFor(other_, kMiB);
  EXPECT_NE(foreign.ptr, first.ptr);
  const Allocation own = AllocateFor(stream_, kMiB, ANVIL_ALLOC_ZEROED);
  EXPECT_EQ(own.ptr, first.ptr);
  gate_->Open();
  EXPECT_OK(anvilStreamSynchronize(stream_));
  EXPECT_TRUE(untouched);
  EXPECT_TRUE(own.IsFilledWith(0));
  EXPECT_OK(anvilFree(foreign.block));
  EXPECT_OK(anvilFree(own.block));
}

TEST_F(QueuedMemory, IsNotHandedOutBeforeOtherStreamsAreDone) {
  const Allocation shared = AllocateFor(stream_, kMiB);
  EXPECT_OK(WaitAt(other_, gate_));
  EXPECT_OK(anvilMemsetAsync(shared.ptr, 1, shared.size(), other_));
  EXPECT_OK(anvilBlockRecordStream(shared.block, other_));
  const uint64_t generation = anvilBlockGeneration(shared.block);
  EXPECT_OK(anvilFree(shared.block));
  EXPECT_NE(anvilBlockGeneration(shared.block), generation);
  EXPECT_EQ(Held(), held_before_ + static_cast<int64_t>(shared.size()));
  const Allocation next = AllocateFor(stream_, kMiB);
  EXPECT_NE(next.ptr, shared.ptr);
  gate_->Open();
  EXPECT_OK(anvilStreamSynchronize(other_));
  EXPECT_OK(anvilFree(next.block));
  EXPECT_EQ(Held(), held_before_);
}

TEST_F(QueuedMemory, WaitsForStreamsThatAreDestroyedMeanwhile) {
  const Allocation shared = AllocateFor(stream_, kMiB);
  EXPECT_OK(WaitAt(other_, gate_));
  EXPECT_OK(anvilMemsetAsync(shared.ptr, 1, shared.size(), other_));
  EXPECT_OK(anvilBlockRecordStream(shared.block, other_));
  EXPECT_OK(anvilStreamDestroy(other_));
  other_ = nullptr;
  EXPECT_OK(anvilFree(shared.block));
  const Allocation next = AllocateFor(stream_, kMiB);
  EXPECT_NE(next.ptr, shared.ptr);
  gate_->Open();
  EXPECT_OK(anvilDeviceSynchronize(0));
  EXPECT_OK(anvilFree(next.block));
}

TEST_F(QueuedMemory, OfADestroyedStreamIsNotTakenOverBeforeItIsDone) {
  const Allocation freed = AllocateFor(other_, kMiB);
  EXPECT_OK(WaitAt(other_, gate_));
  EXPECT_OK(anvilMemsetAsync(freed.ptr, 1, freed.size(), other_));
  EXPECT_OK(anvilFree(freed.block));
  EXPECT_OK(anvilStreamDestroy(other_));
  ASSERT_OK(anvilStreamCreate(&other_, 0, 0));
  const Allocation next = AllocateFor(other_, kMiB);
  EXPECT_NE(next.ptr, freed.ptr);
  EXPECT_OK(anvilFree(next.block));
}

TEST_F(QueuedMemory, IsUnmappedWhenItIsOutOfUse) {
  const Allocation freed = AllocateFor(stream_, 64 * kMiB);
  EXPECT_OK(WaitAt(stream_, gate_));
  bool done = false;
  EXPECT_OK(Do(stream_, [&] {
    std::memset(freed.ptr, 1, 64 * kMiB);
    done = true;
  }));
  EXPECT_OK(anvilFree(freed.block));
  std::thread opener([this] { gate_->Open(); });
  EXPECT_OK(anvilMemEmptyCache(0));
  EXPECT_TRUE(done);
  EXPECT_EQ(Reserved(), 0);
  opener.join();
}

TEST_F(QueuedMemory, AtTheLimitIsWaitedFor) {
  const Allocation freed = AllocateFor(stream_, 200 * kMiB);
  EXPECT_OK(WaitAt(stream_, gate_));
  bool done = false;
  EXPECT_OK(Do(stream_, [&] {
    freed.ptr[0] = freed.ptr[200 * kMiB - 1] = 1;
    done = true;
  }));
  EXPECT_OK(anvilBlockRecordStream(freed.block, other_));
  EXPECT_OK(anvilFree(freed.block));
  std::thread opener([this] { gate_->Open(); });
  const Allocation next = AllocateFor(other_, 150 * kMiB);
  EXPECT_TRUE(done);
  EXPECT_OK(anvilFree(next.block));
  opener.join();
}

TEST_F(QueuedMemory, IsSafeFromTheCommandBeforeIt) {
  // A command that meets the limit cannot wait for those behind it.
  const Allocation freed = AllocateFor(stream_, 150 * kMiB);
  const Allocation elsewhere = AllocateFor(other_, 40 * kMiB);
  EXPECT_OK(anvilFree(elsewhere.block));
  EXPECT_OK(WaitAt(stream_, gate_));
  EXPECT_OK(Do(stream_, [&] {
    Allocation block;
    void* ptr;
    EXPECT_FAILS(anvilMalloc(&block.block, &ptr, 120 * kMiB, 0, 0), ANVIL_ERROR_OUT_OF_MEMORY,
                 "120 MiB");
    EXPECT_OK(anvilMalloc(&block.block, &ptr, 100 * kMiB, 0, 0));  // of what an idle stream had
    EXPECT_OK(anvilFree(block.block));
    EXPECT_OK(anvilMemEmptyCache(0));
  }));
  bool done = false;
  EXPECT_OK(Do(stream_, [&] {
    freed.ptr[0] = freed.ptr[150 * kMiB - 1] = 1;
    done = true;
  }));
  EXPECT_OK(anvilFree(freed.block));
  gate_->Open();
  EXPECT_OK(anvilStreamSynchronize(stream_));
  EXPECT_TRUE(done);
}

TEST_F(QueuedMemory, OfACommandIsFreedInOrderByTheHost) {
  Allocation kept;
  EXPECT_OK(Do(stream_, [&] { kept = AllocateFor(stream_, kMiB); }));
  EXPECT_OK(anvilStreamSynchronize(stream_));
  EXPECT_OK(WaitAt(stream_, gate_));
  EXPECT_OK(anvilMemsetAsync(kept.ptr, 1, kept.size(), stream_));
  EXPECT_OK(anvilFree(kept.block));
  Allocation next;
  void* ptr;
  ASSERT_OK(anvilMalloc(&next.block, &ptr, kMiB, 0, 0));
  EXPECT_NE(ptr, kept.ptr);
  EXPECT_OK(anvilFree(next.block));
}

TEST_F(QueuedMemory, OfAGraphPoolOutlivesWhatIsQueued) {
  anvilGraphPool_t pool;
  ASSERT_OK(anvilGraphPoolCreate(&pool, 0));
  ASSERT_OK(anvilStreamBeginCapture(stream_, pool));
  const Allocation output = AllocateFor(stream_, kMiB);
  anvilGraph_t graph;
  ASSERT_OK(anvilStreamEndCapture(stream_, &graph));
  EXPECT_OK(WaitAt(other_, gate_));
  EXPECT_OK(anvilMemsetAsync(output.ptr, 1, kMiB, other_));
  // All that is left of the pool is the queued command.
  EXPECT_OK(anvilFree(output.block));
  EXPECT_OK(anvilGraphDestroy(graph));
  EXPECT_OK(anvilGraphPoolDestroy(pool));
  int device = -1;
  EXPECT_OK(anvilPointerGetDevice(&device, output.ptr));
  size_t free_bytes, total;
  ASSERT_OK(anvilMemGetInfo(&free_bytes, &total, 0));
  EXPECT_EQ(free_bytes, total) << "it is no more than cached";
  gate_->Open();
  EXPECT_OK(anvilMemEmptyCache(0));
  EXPECT_EQ(Reserved(), 0);
  EXPECT_FAILS(anvilPointerGetDevice(&device, output.ptr), ANVIL_ERROR_INVALID_VALUE, "address");
}

}  // namespace
