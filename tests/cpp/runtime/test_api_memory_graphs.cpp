// SPDX-License-Identifier: Apache-2.0
// The memory of graph pools.
#include <string>

#include "stream_memory.h"

namespace {

class GraphMemory : public StreamMemory {
 protected:
  void SetUp() override {
    StreamMemory::SetUp();
    ASSERT_OK(anvilGraphPoolCreate(&pool_, 0));
  }
  void TearDown() override {
    if (pool_ != nullptr) {
      EXPECT_OK(anvilGraphPoolDestroy(pool_));
    }
    EXPECT_OK(anvilMemEmptyCache(0));
    EXPECT_EQ(Reserved(), 0);
    StreamMemory::TearDown();
  }

  // What the body allocates while it is captured comes from the pool.
  template <typename Body>
  anvilGraph_t Capture(Body&& body) {
    anvilGraph_t graph = nullptr;
    EXPECT_OK(anvilStreamBeginCapture(stream_, pool_));
    body();
    EXPECT_OK(anvilStreamEndCapture(stream_, &graph));
    return graph;
  }
  struct Info {
    size_t allocated, reserved;
  };
  Info PoolInfo() {
    Info info{};
    EXPECT_OK(anvilGraphPoolGetInfo(pool_, &info.allocated, &info.reserved));
    return info;
  }

  anvilGraphPool_t pool_ = nullptr;
};

TEST_F(GraphMemory, IsUsedAgainWithinACapture) {
  EXPECT_EQ(PoolInfo().reserved, 0u);
  anvilGraph_t graph = Capture([&] {
    const Allocation first = AllocateFor(stream_, kMiB);
    const uint64_t generation = anvilBlockGeneration(first.block);
    int device = -1;
    EXPECT_OK(anvilPointerGetDevice(&device, first.ptr));
    EXPECT_EQ(device, 0);
    EXPECT_EQ(anvilBlockDevice(first.block), 0);
    EXPECT_EQ(first.size(), kMiB);
    EXPECT_EQ(PoolInfo().allocated, kMiB);
    EXPECT_EQ(Held(), held_before_ + static_cast<int64_t>(kMiB));
    EXPECT_OK(anvilFree(first.block));
    EXPECT_NE(anvilBlockGeneration(first.block), generation);
    EXPECT_FAILS(anvilFree(first.block), ANVIL_ERROR_INVALID_VALUE, "already been freed");
    const Allocation second = AllocateFor(stream_, kMiB / 2);
    EXPECT_EQ(second.ptr, first.ptr);
    EXPECT_OK(anvilFree(second.block));
    // Not captured: from the stream's own pool.
    const Allocation outside = AllocateFor(other_, kMiB);
    EXPECT_EQ(PoolInfo().allocated, 0u);
    EXPECT_OK(anvilFree(outside.block));
  });
  EXPECT_EQ(PoolInfo().reserved, 2 * kMiB);
  const Allocation after = AllocateFor(stream_, kMiB);
  EXPECT_EQ(PoolInfo().allocated, 0u);
  EXPECT_OK(anvilFree(after.block));
  EXPECT_OK(anvilGraphDestroy(graph));
}

TEST_F(GraphMemory, IsSharedByTheGraphsOfAPool) {
  std::vector<anvilGraph_t> graphs;
  char* address = nullptr;
  for (size_t mib : {10, 30, 20}) {
    graphs.push_back(Capture([&] {
      const Allocation block = AllocateFor(stream_, mib * kMiB);
      if (address == nullptr) address = block.ptr;
      EXPECT_EQ(block.ptr, address);
      EXPECT_OK(anvilFree(block.block));
    }));
  }
  EXPECT_EQ(PoolInfo().reserved, 30 * kMiB);
  for (anvilGraph_t graph : graphs) EXPECT_OK(anvilGraphDestroy(graph));
}

TEST_F(GraphMemory, IsZeroedInEveryReplay) {
  Allocation output;
  anvilGraph_t graph = Capture([&] {
    output = AllocateFor(stream_, 1000, ANVIL_ALLOC_ZEROED);
    EXPECT_OK(Do(stream_, [&] { ++output.ptr[5]; }));
  });
  for (int round = 0; round < 3; ++round) {
    EXPECT_OK(anvilGraphLaunch(graph, stream_));
    EXPECT_OK(anvilStreamSynchronize(stream_));
    EXPECT_EQ(output.ptr[5], 1);
  }
  size_t count = 0;
  anvilGraphNode nodes[2];
  EXPECT_OK(anvilGraphGetNodes(graph, nodes, 2, &count));
  EXPECT_EQ(count, 2u);
  EXPECT_STREQ(nodes[0].name, "zero fill");
  EXPECT_OK(anvilFree(output.block));
  EXPECT_OK(anvilGraphLaunch(graph, stream_));  // the memory is still the graph's
  EXPECT_OK(anvilStreamSynchronize(stream_));
  EXPECT_OK(anvilGraphDestroy(graph));
}

TEST_F(GraphMemory, LivesAsLongAsAnythingOfThePool) {
  Allocation output;
  anvilGraph_t graph = Capture([&] { output = AllocateFor(stream_, kMiB); });
  EXPECT_OK(anvilGraphPoolDestroy(pool_));
  pool_ = nullptr;
  EXPECT_EQ(Reserved(), static_cast<int64_t>(2 * kMiB));
  EXPECT_OK(anvilGraphDestroy(graph));
  EXPECT_OK(anvilMemEmptyCache(0));
  EXPECT_EQ(Reserved(), static_cast<int64_t>(2 * kMiB));
  output.ptr[0] = output.ptr[kMiB - 1] = 1;
  EXPECT_OK(anvilFree(output.block));
  EXPECT_EQ(Reserved(), 0);
  int device;
  EXPECT_FAILS(anvilPointerGetDevice(&device, output.ptr), ANVIL_ERROR_INVALID_VALUE, "address");
}

TEST_F(GraphMemory, CountsUnderATagOfItsOwn) {
  Allocation output;
  anvilGraph_t graph = Capture([&] { output = AllocateFor(stream_, 3 * kMiB); });
  std::vector<anvilTagStats> tags(20);
  size_t count = 0;
  ASSERT_OK(anvilMemGetTagStats(tags.data(), tags.size(), &count, 0));
  ASSERT_LE(count, tags.size());
  size_t allocated = 0, reserved = 0;
  bool found = false;
  for (size_t i = 0; i < count; ++i) {
    allocated += tags[i].allocated_bytes;
    reserved += tags[i].reserved_bytes;
    if (std::string(tags[i].tag) != "graphs") continue;
    found = true;
    EXPECT_EQ(tags[i].allocated_bytes, 3 * kMiB);
    EXPECT_EQ(tags[i].reserved_bytes, 4 * kMiB);
  }
  EXPECT_TRUE(found);
  EXPECT_EQ(static_cast<int64_t>(allocated), Held());
  EXPECT_EQ(static_cast<int64_t>(reserved), Reserved());
  EXPECT_OK(anvilFree(output.block));
  EXPECT_OK(anvilGraphDestroy(graph));
}

TEST_F(GraphMemory, IsBoundByTheLimit) {
  const Allocation cached = AllocateFor(other_, 100 * kMiB);
  EXPECT_OK(anvilFree(cached.block));
  Allocation output;
  anvilGraph_t graph = Capture([&] {
    output = AllocateFor(stream_, 200 * kMiB);  // the cache gives way
    anvilBlock_t block;
    void* ptr;
    EXPECT_FAILS(anvilMallocAsync(&block, &ptr, 60 * kMiB, stream_, 0), ANVIL_ERROR_OUT_OF_MEMORY,
                 "60 MiB asked for by a graph pool");
    EXPECT_EQ(block, nullptr);
  });
  EXPECT_EQ(Reserved(), static_cast<int64_t>(200 * kMiB));
  EXPECT_OK(anvilFree(output.block));
  anvilBlock_t block;
  void* ptr;
  EXPECT_FAILS(anvilMalloc(&block, &ptr, 100 * kMiB, 0, 0), ANVIL_ERROR_OUT_OF_MEMORY,
               "kept by graph pools for replays 200 MiB");
  EXPECT_FAILS(anvilMalloc(&block, &ptr, 100 * kMiB, 0, 0), ANVIL_ERROR_OUT_OF_MEMORY,
               "destroy graphs");
  EXPECT_OK(anvilGraphDestroy(graph));
}

TEST_F(GraphMemory, BadArgumentsAreNamed) {
  size_t size;
  EXPECT_FAILS(anvilGraphPoolCreate(nullptr, 0), ANVIL_ERROR_INVALID_VALUE, "pool");
  EXPECT_FAILS(anvilGraphPoolDestroy(nullptr), ANVIL_ERROR_INVALID_VALUE, "pool");
  EXPECT_FAILS(anvilGraphPoolGetInfo(nullptr, &size, &size), ANVIL_ERROR_INVALID_VALUE, "pool");
  EXPECT_FAILS(anvilGraphPoolGetInfo(pool_, nullptr, &size), ANVIL_ERROR_INVALID_VALUE,
               "allocated_bytes");
  EXPECT_FAILS(anvilGraphPoolGetInfo(pool_, &size, nullptr), ANVIL_ERROR_INVALID_VALUE,
               "reserved_bytes");
  anvilGraphPool_t made;
  EXPECT_FAILS(anvilGraphPoolCreate(&made, 50), ANVIL_ERROR_INVALID_DEVICE, "50");
}

}  // namespace
