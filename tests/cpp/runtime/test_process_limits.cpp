// SPDX-License-Identifier: Apache-2.0
// What happens when the operating system refuses.
#include <pthread.h>
#include <sys/resource.h>

#include <atomic>

#include "child_process.h"
#include "stream_work.h"

namespace {

// No thread can have a stack of 64 TiB.
void LimitStacks(size_t stack_size) {
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, stack_size) == 0);
  REQUIRE(pthread_setattr_default_np(&attributes) == 0);
}

TEST(LimitsDeathTest, ARefusedMappingIsOutOfMemoryWithTheHostsReason) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need the whole address space";
  const auto child = [&] {
    UseOneSmallDevice();
    int count;
    REQUIRE_OK(anvilGetDeviceCount(&count));
    rlimit limit{};
    limit.rlim_cur = limit.rlim_max = size_t{64} << 20;
    REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
    anvilBlock_t block;
    void* ptr;
    REQUIRE(anvilMalloc(&block, &ptr, size_t{128} << 20, 0, 0) == ANVIL_ERROR_OUT_OF_MEMORY);
    REQUIRE(block == nullptr && ptr == nullptr);
    std::fprintf(stderr, "%s\n", anvilGetLastErrorMessage());
    anvilMemoryStats stats;
    REQUIRE_OK(anvilMemGetStats(&stats, 0));
    REQUIRE(stats.reserved_bytes.current == 0);
    REQUIRE(stats.num_ooms == 1);
    REQUIRE(stats.num_alloc_retries == 1);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0),
              "128 MiB.*the host refused.*Cannot allocate memory.*ulimit -v");
}

TEST(LimitsDeathTest, WithoutThreadsRegionsRunOnTheirCaller) {
  if (kSanitized) GTEST_SKIP() << "sanitizers set the size of stacks themselves";
  const auto child = [&] {
    UseOneSmallDevice();
    if (anvilWorkerCount(0) == 1) {
      std::fprintf(stderr, "runs on 1 of its cores\n");  // nothing to refuse
      _exit(0);
    }
    LimitStacks(size_t{1} << 46);
    for (int region = 0; region < 3; ++region) {
      std::atomic<int64_t> covered{0};
      REQUIRE_OK(anvilParallelFor(
          0, 1000, 1,
          [](void* arg, int64_t begin, int64_t end, int) {
            *static_cast<std::atomic<int64_t>*>(arg) += end - begin;
          },
          &covered));
      REQUIRE(covered == 1000);
    }
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "runs on 1 of its .*cores");
}

TEST(LimitsDeathTest, WithoutItsThreadADeviceTakesNoWork) {
  if (kSanitized) GTEST_SKIP() << "sanitizers set the size of stacks themselves";
  const auto child = [&] {
    UseOneSmallDevice();
    anvilStream_t stream;
    REQUIRE_OK(anvilStreamGetDefault(&stream, 0));
    LimitStacks(size_t{1} << 46);
    const auto alive = std::make_shared<int>(0);
    REQUIRE(Do(stream, [alive] { ++*alive; }) == ANVIL_ERROR_SYSTEM);
    std::fprintf(stderr, "%s\n", anvilGetLastErrorMessage());
    REQUIRE(alive.use_count() == 1 && *alive == 0);  // destroyed, not run
    REQUIRE_OK(anvilStreamSynchronize(stream));
    // Once the system has recovered, so has the device.
    LimitStacks(size_t{1} << 20);
    REQUIRE_OK(Do(stream, [alive] { ++*alive; }));
    REQUIRE_OK(anvilStreamSynchronize(stream));
    REQUIRE(*alive == 1);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0),
              "refused the thread.*Cannot|refused the thread.*unavailable");
}

}  // namespace
