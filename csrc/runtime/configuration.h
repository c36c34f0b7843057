// SPDX-License-Identifier: Apache-2.0
// The ANVIL_* variables that the runtime obeys, from text to a checked request.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "error.h"
#include "planner.h"

namespace anvil {

struct Configuration {
  PlanRequest request;
  // ANVIL_LAUNCH_BLOCKING=1: every command is done when its submission returns.
  bool launch_blocking = false;
  // ANVIL_SANITIZE=1: memory that streams use without an order is reported.
  bool sanitize = false;
  // ANVIL_DEBUG_POISON=1: memory is overwritten when it is handed out and when it is freed.
  bool poison = false;
  // ANVIL_DEBUG_DELAY: microseconds; each command starts late by a random time up to that.
  uint32_t longest_delay = 0;
};

// The value of a variable, or nothing when it is unset. An empty value counts as unset.
using Environment = std::function<std::optional<std::string>(const char* name)>;

// The error names the variable, its value and what is accepted.
Result<Configuration> ReadConfiguration(const Environment& environment);

// The process's own environment.
std::optional<std::string> ProcessEnvironment(const char* name);

}  // namespace anvil
