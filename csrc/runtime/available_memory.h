// SPDX-License-Identifier: Apache-2.0
// How much memory the process can still take, for questions that are asked often.
#pragma once

#include <cstdint>

namespace anvil {

// The least of what the host and each control group leave, as it was within the last 10 ms: reading
// it takes some 0.2 ms, and even the latest figure is no more than a hint. Other processes change
// it, and memory counts as used from its first touch on, not from its allocation.
uint64_t AvailableHostMemory();

// The next question reads it again: memory went back to the system.
void ForgetAvailableHostMemory() noexcept;

}  // namespace anvil
