// SPDX-License-Identifier: Apache-2.0
// Pinned host memory as PyTorch knows it. Memory that is freed while queued copies use it is handed
// out again when they have run.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include "anvil/runtime.h"

namespace anvil {

at::HostAllocator* pinned_allocator();

// Keeps pinned memory, once freed, from being handed out before what `stream` holds now has run;
// false when the address is not in pinned memory.
bool keep_pinned_until_now(const void* address, anvilStream_t stream);

}  // namespace anvil
