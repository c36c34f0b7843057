// SPDX-License-Identifier: Apache-2.0
// Scratch memory of the threads that run kernels.
#pragma once

#include <cstddef>

namespace anvil::triton {

constexpr size_t kScratchAlignment = 64;

// At least `bytes` of memory that belong to the calling thread, aligned to kScratchAlignment, with
// whatever an earlier kernel left in them; null when the host has no memory. The same memory is
// handed out again by the next call; it grows as needed and is freed when the thread ends.
void* thread_scratch(size_t bytes) noexcept;

}  // namespace anvil::triton
