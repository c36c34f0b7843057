// SPDX-License-Identifier: Apache-2.0
// A device that is in use does not survive fork(): its threads do not exist in the child, and a
// lock that another thread held stays held. The child is told so instead of hanging. One that was
// only described (counted, its properties read) is the child's own.
#pragma once

#include <atomic>

#include "error.h"

namespace anvil {

namespace process {
extern std::atomic<bool> forked_child;
extern std::atomic<bool> in_use;
}  // namespace process

inline bool IsForkedChild() noexcept {
  return process::forked_child.load(std::memory_order_relaxed);
}

anvilError_t FailForked() noexcept;

// From here on a forked child is marked. Called before devices are made, during which they count as
// in use.
anvilError_t WatchForks() noexcept;
// Takes that back: nothing of the devices is in use yet, or none came of it.
void IgnoreForks() noexcept;
// From here on devices are in use.
inline void MarkInUse() noexcept {
  if (!process::in_use.load(std::memory_order_relaxed)) {
    process::in_use.store(true, std::memory_order_relaxed);
  }
}

}  // namespace anvil
