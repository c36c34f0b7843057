// SPDX-License-Identifier: Apache-2.0
// Ops without a kernel of ours run PyTorch's CPU kernel on aliases of the same memory.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>

#include "aten/host_call.h"
#include "core/host_pool.h"

namespace anvil {

// Operations that a CPU kernel calls are its own business: no autograd, and no autocast the user
// set for the CPU.
inline constexpr c10::DispatchKeySet kHostCallExcluded =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView |
    c10::DispatchKeySet({c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastPrivateUse1});

// While alive, this thread runs CPU kernels on the device's behalf: what they call stays on the
// CPU, and what they allocate comes from the device.
class HostCallScope {
 public:
  explicit HostCallScope(c10::DeviceIndex device) : exclude_(kHostCallExcluded), pool_(device) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard exclude_;
  HostPoolScope pool_;
};

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
