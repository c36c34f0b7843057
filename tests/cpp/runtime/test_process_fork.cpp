// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>

#include "child_process.h"
#include "every_call.h"
#include "stream_work.h"

namespace {

// Forks and returns the exit status of `body` in the child.
int InForkedChild(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST(ForkDeathTest, EveryCallInTheChildOfAnInitialisedProcessIsRefused) {
  const auto child = [&] {
    UseOneSmallDevice();
    Handles handles;
    REQUIRE_OK(anvilMalloc(&handles.block, &handles.pointer, 1000, 0, 0));
    REQUIRE_OK(anvilHostAlloc(&handles.pinned, 1000));
    REQUIRE_OK(anvilStreamCreate(&handles.stream, 0, 0));
    REQUIRE_OK(anvilEventCreate(&handles.event, ANVIL_EVENT_TIMING));
    REQUIRE_OK(anvilEventRecord(handles.event, handles.stream));
    REQUIRE_OK(anvilGraphPoolCreate(&handles.pool, 0));
    REQUIRE_OK(anvilStreamBeginCapture(handles.stream, handles.pool));
    REQUIRE_OK(anvilStreamEndCapture(handles.stream, &handles.graph));
    const int status = InForkedChild([&] {
      REQUIRE(anvilIsForkedChild() == 1);
      std::vector<NamedCall> calls = CallsThatNeedDevices();
      for (const NamedCall& call : CallsOnHandles(handles)) calls.push_back(call);
      for (const auto& [name, call] : calls) {
        if (call() == ANVIL_ERROR_FORKED) continue;
        std::fprintf(stderr, "%s did not refuse\n", name.c_str());
        _exit(1);
      }
      REQUIRE(anvilStreamFailCapture(handles.stream, "") == ANVIL_ERROR_FORKED);
      REQUIRE(anvilHostIsPinned(handles.pinned) == 0);
      REQUIRE(anvilStreamIsBusy(handles.stream) == 0);
      REQUIRE(anvilStreamIsCapturing(handles.stream) == 0);
      REQUIRE(anvilStreamWantsAccesses(handles.stream) == 0);
      REQUIRE(anvilWorkerCount(0) == 1);
      std::fprintf(stderr, "%s\n", anvilGetLastErrorMessage());
      // A grandchild is no better off.
      REQUIRE(InForkedChild([] { REQUIRE(anvilIsForkedChild() == 1); }) == 0);
    });
    REQUIRE(status == 0);
    // The parent goes on as before.
    REQUIRE(anvilIsForkedChild() == 0);
    for (const auto& [name, call] : CallsOnHandles(handles)) REQUIRE_OK(call());
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "spawn");
}

TEST(ForkDeathTest, ACommandRefusedInTheChildIsDestroyed) {
  const auto child = [&] {
    UseOneSmallDevice();
    anvilStream_t stream;
    REQUIRE_OK(anvilStreamGetDefault(&stream, 0));
    const int status = InForkedChild([stream] {
      int destroyed = 0;
      const anvilCommand command{"work",
                                 [](void*) { return ANVIL_SUCCESS; },
                                 [](void* arg) { ++*static_cast<int*>(arg); },
                                 &destroyed,
                                 nullptr,
                                 0};
      REQUIRE(anvilStreamSubmit(stream, &command) == ANVIL_ERROR_FORKED);
      REQUIRE(destroyed == 1);
    });
    REQUIRE(status == 0);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

TEST(ForkDeathTest, WorkGoesOnInTheParentAndHoldsUpNoExitInTheChild) {
  const auto child = [&] {
    UseOneSmallDevice();
    const auto gate = std::make_shared<Gate>();
    anvilStream_t stream;
    bool ran = false;
    REQUIRE_OK(anvilStreamGetDefault(&stream, 0));
    REQUIRE_OK(WaitAt(stream, gate));
    REQUIRE_OK(Do(stream, [&ran] { ran = true; }));
    REQUIRE(InForkedChild([] { std::exit(0); }) == 0);
    gate->Open();
    REQUIRE_OK(anvilStreamSynchronize(stream));
    REQUIRE(ran);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

TEST(ForkDeathTest, AChildForkedBeforeTheFirstUseIsAProcessLikeAnyOther) {
  const auto child = [&] {
    UseOneSmallDevice();
    const int status = InForkedChild([] {
      int count = 0;
      REQUIRE_OK(anvilGetDeviceCount(&count));
      REQUIRE(count == 1);
    });
    REQUIRE(status == 0);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

TEST(ForkDeathTest, ADeviceThatWasOnlyDescribedIsTheChildsOwn) {
  const auto child = [&] {
    UseOneSmallDevice();
    int count = 0;
    anvilDeviceProperties properties;
    REQUIRE_OK(anvilGetDeviceCount(&count));
    REQUIRE_OK(anvilSetDevice(0));
    REQUIRE_OK(anvilGetDeviceProperties(&properties, 0));
    REQUIRE(anvilWorkerCount(0) == properties.core_count);
    REQUIRE(anvilIsInUse() == 0);
    const int status = InForkedChild([] {
      REQUIRE(anvilIsForkedChild() == 0 && anvilIsInitialized() == 1);
      anvilStream_t stream;
      bool ran = false;
      REQUIRE_OK(anvilStreamGetDefault(&stream, 0));
      REQUIRE_OK(Do(stream, [&ran] { ran = true; }));
      REQUIRE_OK(anvilStreamSynchronize(stream));
      REQUIRE(ran);
      REQUIRE(InForkedChild([] { REQUIRE(anvilIsForkedChild() == 1); }) == 0);
    });
    REQUIRE(status == 0);
    anvilStream_t stream;
    REQUIRE_OK(anvilStreamGetDefault(&stream, 0));
    REQUIRE(anvilIsInUse() == 1);
    REQUIRE(InForkedChild([] { REQUIRE(anvilIsForkedChild() == 1); }) == 0);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

TEST(ForkDeathTest, AFailedConfigurationIsNoDevice) {
  const auto child = [&] {
    UseOneSmallDevice();
    setenv("ANVIL_DEVICES", "0", 1);
    int count = 0;
    REQUIRE(anvilGetDeviceCount(&count) == ANVIL_ERROR_CONFIGURATION);
    const int status = InForkedChild([] {
      int again = 0;
      REQUIRE(anvilIsForkedChild() == 0);
      REQUIRE(anvilGetDeviceCount(&again) == ANVIL_ERROR_CONFIGURATION);
    });
    REQUIRE(status == 0);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

}  // namespace
