// SPDX-License-Identifier: Apache-2.0
// Assertions on calls of the driver interface that show its words when they fail.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "anvil/runtime.h"

#define EXPECT_OK(call) EXPECT_EQ(call, ANVIL_SUCCESS) << anvilGetLastErrorMessage()
#define ASSERT_OK(call) ASSERT_EQ(call, ANVIL_SUCCESS) << anvilGetLastErrorMessage()

// The call fails with `code`, and its message has `words` in it.
#define EXPECT_FAILS(call, code, words)                                               \
  do {                                                                                \
    EXPECT_EQ(call, code);                                                            \
    EXPECT_NE(std::string(anvilGetLastErrorMessage()).find(words), std::string::npos) \
        << anvilGetLastErrorMessage();                                                \
  } while (false)

inline int DeviceCount() {
  int count = 0;
  EXPECT_OK(anvilGetDeviceCount(&count));
  return count;
}
