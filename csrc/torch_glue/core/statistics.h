// SPDX-License-Identifier: Apache-2.0
// The runtime's counters as PyTorch's.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "anvil/runtime.h"

namespace anvil {

inline void fill(c10::CachingAllocator::Stat& to, const anvilStat& from) {
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
}

// The runtime keeps one figure over all pools; PyTorch's breakdown into small and large pools has
// no counterpart.
inline void fill(c10::CachingAllocator::StatArray& to, const anvilStat& from) {
  fill(to[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)], from);
}

}  // namespace anvil
