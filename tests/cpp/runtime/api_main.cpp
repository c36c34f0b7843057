// SPDX-License-Identifier: Apache-2.0
// The devices that the tests of the driver interface run on: two where the machine has the cores,
// small enough to be filled.
#include <gtest/gtest.h>
#include <stdlib.h>

#include "planner.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  anvil::PlanRequest two;
  two.device_count = 2;
  const bool enough = anvil::PlanDevices(anvil::ReadHost("", anvil::ReadAffinity()), two).ok();
  setenv("ANVIL_DEVICES", enough ? "2" : "1", 1);
  setenv("ANVIL_DEVICE_MEMORY", "256MiB", 1);
  unsetenv("ANVIL_VISIBLE_DEVICES");
  unsetenv("ANVIL_LAUNCH_BLOCKING");
  unsetenv("ANVIL_DEBUG_DELAY");
  return RUN_ALL_TESTS();
}
