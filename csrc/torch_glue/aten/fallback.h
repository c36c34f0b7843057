// SPDX-License-Identifier: Apache-2.0
// Ops without a kernel of ours run PyTorch's CPU kernel on aliases of the same memory.
#pragma once

#include <ATen/core/stack.h>

#include "aten/host_call.h"

namespace anvil {

// Runs the CPU kernel of `kernel` for a call of `op`, whose arguments are on top of the stack and
// are `kernel`'s too.
void run_on_host(const c10::OperatorHandle& op, const OpTraits& traits,
                 const c10::OperatorHandle& kernel, torch::jit::Stack* stack);

// Registers the fallback for every op that has a CPU kernel and none of ours, and as the backend's
// fallback for ops that are registered later (custom operators). Registering each op by name keeps
// structured ops from decomposing first, which would cost a second dispatch. Called once, after all
// native kernels are registered.
void register_fallbacks();

}  // namespace anvil
