// SPDX-License-Identifier: Apache-2.0
#include "child_process.h"
#include "every_call.h"

namespace {

struct BrokenVariable {
  const char* variable;
  const char* value;
  const char* words;  // a regular expression
};

void PrintTo(const BrokenVariable& broken, std::ostream* stream) {
  *stream << broken.variable << "='" << broken.value << "'";
}

class BrokenConfigurationDeathTest : public testing::TestWithParam<BrokenVariable> {};

TEST_P(BrokenConfigurationDeathTest, EveryCallSaysTheSame) {
  const BrokenVariable& broken = GetParam();
  const auto child = [&] {
    UseOneSmallDevice();
    setenv(broken.variable, broken.value, 1);
    std::string first;
    for (const auto& [name, call] : CallsThatNeedDevices()) {
      if (call() != ANVIL_ERROR_CONFIGURATION) {
        std::fprintf(stderr, "%s did not refuse\n", name.c_str());
        _exit(1);
      }
      const std::string message = anvilGetLastErrorMessage();
      if (first.empty()) first = message;
      REQUIRE(message == first);
    }
    REQUIRE(anvilIsInitialized() == 0);
    REQUIRE(anvilWorkerCount(0) == 1);
    // No device came of it: a child may try its own luck.
    REQUIRE(anvilIsForkedChild() == 0);
    // Repaired too late: the configuration is fixed from the first call on.
    unsetenv(broken.variable);
    int count = -1;
    REQUIRE(anvilGetDeviceCount(&count) == ANVIL_ERROR_CONFIGURATION);
    REQUIRE(count == 0);
    std::fprintf(stderr, "%s\n", first.c_str());
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), broken.words);
}

INSTANTIATE_TEST_SUITE_P(
    Table, BrokenConfigurationDeathTest,
    testing::Values(BrokenVariable{"ANVIL_DEVICES", "0", "ANVIL_DEVICES='0'"},
                    BrokenVariable{"ANVIL_DEVICES", "64", "ANVIL_DEVICES"},
                    BrokenVariable{"ANVIL_DEVICE_MEMORY", "-1", "ANVIL_DEVICE_MEMORY='-1'"},
                    BrokenVariable{"ANVIL_DEVICE_MEMORY", "1000TiB", "1000 TiB.*this host has"},
                    BrokenVariable{"ANVIL_VISIBLE_DEVICES", "1", "ANVIL_VISIBLE_DEVICES.*device 1"},
                    BrokenVariable{"ANVIL_LAUNCH_BLOCKING", "on", "ANVIL_LAUNCH_BLOCKING='on'"},
                    BrokenVariable{"ANVIL_DEBUG_DELAY", "1s", "ANVIL_DEBUG_DELAY='1s'"}));

TEST(ConfigurationDeathTest, ThingsThatNeedNoDeviceDoNotReadIt) {
  const auto child = [&] {
    setenv("ANVIL_DEVICES", "broken", 1);
    int device = -1;
    REQUIRE_OK(anvilGetDevice(&device));
    REQUIRE(device == 0);
    REQUIRE(anvilHostIsPinned(&device) == 0);
    REQUIRE_OK(anvilFree(nullptr));
    REQUIRE_OK(anvilMemPushTag("tag"));
    REQUIRE_OK(anvilMemPopTag());
    REQUIRE(anvilIsInitialized() == 0);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

TEST(ConfigurationDeathTest, VisibleDevicesAreRenumbered) {
  const auto child = [&] {
    UseOneSmallDevice();
    setenv("ANVIL_DEVICES", "2", 1);
    setenv("ANVIL_VISIBLE_DEVICES", "1", 1);
    int count = 0;
    if (anvilGetDeviceCount(&count) != ANVIL_SUCCESS) {
      // A machine with one core: the words have to say so.
      REQUIRE(std::string(anvilGetLastErrorMessage()).find("only 1 core") != std::string::npos);
      _exit(0);
    }
    REQUIRE(count == 1);
    anvilDeviceProperties properties;
    REQUIRE_OK(anvilGetDeviceProperties(&properties, 0));
    REQUIRE(properties.physical_index == 1);
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

TEST(ConfigurationDeathTest, TheDefaultLeavesTheEngineItsShare) {
  // An engine refuses to start when less than 0.9 of the total is free.
  const auto child = [&] {
    UseOneSmallDevice();
    unsetenv("ANVIL_DEVICE_MEMORY");
    size_t free_bytes;
    size_t total;
    REQUIRE_OK(anvilMemGetInfo(&free_bytes, &total, 0));
    REQUIRE(total > 0);
    REQUIRE(static_cast<double>(free_bytes) >= 0.9 * static_cast<double>(total));
  };
  EXPECT_EXIT(RunToTheEnd(child), testing::ExitedWithCode(0), "");
}

}  // namespace
