// SPDX-License-Identifier: Apache-2.0
// Checks that run in a child process, as EXPECT_EXIT(RunToTheEnd(body), ExitedWithCode(0), words):
// a failure leaves it through its exit code and says on stderr what does not hold.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "anvil/runtime.h"

// Leaves the process with a failure unless the condition holds.
#define REQUIRE(condition)                                                                  \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      std::fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__, __LINE__, \
                   #condition, anvilGetLastErrorMessage());                                 \
      _exit(1);                                                                             \
    }                                                                                       \
  } while (false)

#define REQUIRE_OK(call) REQUIRE((call) == ANVIL_SUCCESS)

template <typename Body>
[[noreturn]] void RunToTheEnd(const Body& body) {
  body();
  _exit(0);
}

// A small device of one's own, whatever the environment says.
inline void UseOneSmallDevice() {
  setenv("ANVIL_DEVICES", "1", 1);
  setenv("ANVIL_DEVICE_MEMORY", "256MiB", 1);
  for (const char* variable : {"ANVIL_VISIBLE_DEVICES", "ANVIL_LAUNCH_BLOCKING", "ANVIL_SANITIZE",
                               "ANVIL_DEBUG_POISON", "ANVIL_DEBUG_DELAY"}) {
    unsetenv(variable);
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;  // address space limits and the like do not work
#else
inline constexpr bool kSanitized = false;
#endif
