// SPDX-License-Identifier: Apache-2.0
#include <thread>
#include <vector>

#include "child_process.h"

namespace {

// Frees what it holds when the process's static objects are destroyed.
struct LateOwner {
  std::vector<anvilBlock_t> blocks;
  void* pinned = nullptr;

  ~LateOwner() {
    for (anvilBlock_t block : blocks) REQUIRE_OK(anvilFree(block));
    REQUIRE_OK(anvilHostFree(pinned));
    // A failure has its words even now.
    REQUIRE(anvilHostFree(this) == ANVIL_ERROR_INVALID_VALUE);
    std::fprintf(stderr, "all freed: %s\n", anvilGetLastErrorMessage());
  }
};

TEST(ExitDeathTest, MemoryCanBeFreedDuringStaticDestruction) {
  const auto child = [&] {
    UseOneSmallDevice();
    // Constructed before anything of the runtime, hence destroyed after it.
    static LateOwner owner;
    for (size_t bytes : {size_t{64}, size_t{100000}, size_t{64} << 20}) {
      anvilBlock_t block;
      void* ptr;
      REQUIRE_OK(anvilMalloc(&block, &ptr, bytes, 0, ANVIL_ALLOC_ZEROED));
      owner.blocks.push_back(block);
    }
    REQUIRE_OK(anvilHostAlloc(&owner.pinned, 1000));
    std::exit(0);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "all freed: .*not the start");
}

TEST(ExitDeathTest, SleepingAndSpinningWorkersDoNotHoldUpTheExit) {
  const auto child = [&] {
    UseOneSmallDevice();
    for (int region = 0; region < 100; ++region) {
      REQUIRE_OK(anvilParallelFor(0, 64, 1, [](void*, int64_t, int64_t, int) {}, nullptr));
    }
    std::exit(0);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

TEST(ExitDeathTest, ThreadsMayUseTheDeviceWhileTheProcessExits) {
  const auto child = [&] {
    UseOneSmallDevice();
    std::thread([] {
      for (;;) {
        anvilBlock_t block;
        void* ptr;
        anvilStream_t stream;
        REQUIRE_OK(anvilMalloc(&block, &ptr, size_t{4} << 20, 0, ANVIL_ALLOC_ZEROED));
        REQUIRE_OK(anvilStreamGetDefault(&stream, 0));
        REQUIRE_OK(anvilMemsetAsync(ptr, 1, size_t{4} << 20, stream));
        REQUIRE_OK(anvilFree(block));
      }
    }).detach();
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    std::exit(0);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

}  // namespace
