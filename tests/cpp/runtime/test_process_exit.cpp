// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "child_process.h"
#include "stream_work.h"

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
    static Gate& in_use = *new Gate;  // outlives the threads
    std::thread([] {
      anvilStream_t stream;
      REQUIRE_OK(anvilStreamGetDefault(&stream, 0));
      for (;;) {
        anvilBlock_t block;
        void* ptr;
        REQUIRE_OK(anvilMalloc(&block, &ptr, size_t{4} << 20, 0, ANVIL_ALLOC_ZEROED));
        const anvilError_t status = anvilMemsetAsync(ptr, 1, size_t{4} << 20, stream);
        REQUIRE(status == ANVIL_SUCCESS || status == ANVIL_ERROR_SYSTEM);
        const anvilError_t waited = anvilStreamSynchronize(stream);
        REQUIRE(waited == ANVIL_SUCCESS || waited == ANVIL_ERROR_SYSTEM);
        REQUIRE_OK(anvilFree(block));
        in_use.Open();
      }
    }).detach();
    in_use.Pass();
    std::exit(0);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

// Checks when the process's static objects are destroyed.
struct LateCheck {
  std::function<void()> body;
  ~LateCheck() { body(); }
};

anvilStream_t DefaultStream(int device = 0) {
  anvilStream_t stream = nullptr;
  REQUIRE_OK(anvilStreamGetDefault(&stream, device));
  return stream;
}

TEST(ExitDeathTest, WhatIsQueuedRunsBeforeStaticObjectsAreDestroyed) {
  const auto child = [&] {
    UseOneSmallDevice();
    static std::atomic<int> ran{0}, destroyed{0};
    static const LateCheck check{[] { REQUIRE(ran == 1000 && destroyed == 1000); }};
    const anvilCommand command{"count",
                               [](void*) {
                                 ++ran;
                                 return ANVIL_SUCCESS;
                               },
                               [](void*) { ++destroyed; },
                               nullptr,
                               nullptr,
                               0};
    static Gate& running = *new Gate;
    REQUIRE_OK(Do(DefaultStream(), [] {
      running.Open();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // well into the exit
    }));
    for (int i = 0; i < 1000; ++i) REQUIRE_OK(anvilStreamSubmit(DefaultStream(), &command));
    running.Pass();
    std::exit(0);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

TEST(ExitDeathTest, AnyThreadMayEndTheProcess) {
  const auto child = [&] {
    UseOneSmallDevice();
    static std::atomic<bool> ran{false};
    static const LateCheck check{[] { REQUIRE(ran); }};
    REQUIRE_OK(Do(DefaultStream(), [] { ran = true; }));
    std::thread([] { std::exit(0); }).join();
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

TEST(ExitDeathTest, ACommandMayEndTheProcess) {
  const auto child = [&] {
    UseOneSmallDevice();
    REQUIRE_OK(Do(DefaultStream(), [] { std::exit(0); }));
    anvilStreamSynchronize(DefaultStream());
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

TEST(ExitDeathTest, StaticObjectsCanFreeButNotSubmit) {
  const auto child = [&] {
    UseOneSmallDevice();
    static anvilBlock_t block;
    static const LateCheck check{[] {
      const auto alive = std::make_shared<int>(0);
      REQUIRE(Do(DefaultStream(), [alive] { ++*alive; }) == ANVIL_ERROR_SYSTEM);
      std::fprintf(stderr, "%s\n", anvilGetLastErrorMessage());
      REQUIRE(alive.use_count() == 1 && *alive == 0);  // destroyed, not run
      REQUIRE_OK(anvilStreamSynchronize(DefaultStream()));
      REQUIRE_OK(anvilDeviceSynchronize(0));
      REQUIRE_OK(anvilFree(block));
    }};
    void* ptr;
    REQUIRE_OK(anvilMalloc(&block, &ptr, 1000, 0, 0));
    REQUIRE_OK(Do(DefaultStream(), [] {}));
    // Made later, destroyed earlier: still at work.
    static const LateCheck early{[] {
      bool ran = false;
      REQUIRE_OK(Do(DefaultStream(), [&ran] { ran = true; }));
      REQUIRE_OK(anvilStreamSynchronize(DefaultStream()));
      REQUIRE(ran);
    }};
    std::exit(0);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "process is exiting");
}

TEST(ExitDeathTest, ACommandThatNeverEndsHoldsItUpForSomeSecondsOnly) {
  const auto child = [&] {
    UseOneSmallDevice();
    setenv("ANVIL_DEVICES", "2", 1);
    int count = 0;
    if (anvilGetDeviceCount(&count) != ANVIL_SUCCESS) _exit(0);  // a machine with one core
    static std::atomic<bool> ran{false};
    static const auto alive = std::make_shared<int>(0);
    static const LateCheck check{[] {
      // What had to wait for it is dropped.
      REQUIRE(!ran);
      REQUIRE(alive.use_count() == 1);
    }};
    anvilEvent_t event;
    REQUIRE_OK(anvilEventCreate(&event, 0));
    REQUIRE_OK(WaitAt(DefaultStream(0), std::make_shared<Gate>()));
    REQUIRE_OK(anvilEventRecord(event, DefaultStream(0)));
    REQUIRE_OK(anvilStreamWaitEvent(DefaultStream(1), event));
    REQUIRE_OK(Do(DefaultStream(1), [held = alive] { ran = true; }));
    std::exit(0);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

}  // namespace
