// SPDX-License-Identifier: Apache-2.0
// A device does not survive fork(): its worker threads do not exist in the child, and a lock that
// another thread held stays held. The child is told so instead of hanging.
#pragma once

#include <atomic>

#include "error.h"

namespace anvil {

namespace process {
extern std::atomic<bool> forked_child;
extern std::atomic<bool> devices_exist;
}  // namespace process

inline bool IsForkedChild() noexcept {
  return process::forked_child.load(std::memory_order_relaxed);
}

anvilError_t FailForked() noexcept;

// From here on a forked child is marked. Called before the first device is made.
anvilError_t WatchForks() noexcept;
// Takes WatchForks back where no device came of it.
void IgnoreForks() noexcept;

}  // namespace anvil
