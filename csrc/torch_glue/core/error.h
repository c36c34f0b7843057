// SPDX-License-Identifier: Apache-2.0
// Turns the runtime's status codes into PyTorch's exceptions.
#pragma once

#include <c10/util/Exception.h>

#include "anvil/runtime.h"

namespace anvil {

// Out of memory becomes torch.OutOfMemoryError, a failed command the exception that its kernel
// raised, everything else a RuntimeError; with the runtime's own words.
[[noreturn]] void throw_error(anvilError_t error);

inline void check(anvilError_t error) {
  if (C10_UNLIKELY(error != ANVIL_SUCCESS)) throw_error(error);
}

}  // namespace anvil
