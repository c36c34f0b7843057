// SPDX-License-Identifier: Apache-2.0
// Ops without a kernel of ours run PyTorch's CPU kernel on aliases of the same memory: as a command
// of the current stream where their results' shapes are known beforehand, else while the caller
// waits.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>

#include <mutex>

#include "aten/host_call.h"
#include "aten/launch_plan.h"
#include "core/host_pool.h"

namespace anvil {

// Operations that a CPU kernel calls are its own business: no autograd, and no autocast the user
// set for the CPU.
inline constexpr c10::DispatchKeySet kHostCallExcluded =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView |
    c10::DispatchKeySet({c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastPrivateUse1});

// While alive, this thread runs CPU kernels on the device's behalf: what they call stays on the
// CPU, and what they allocate comes from the device. The arguments are HostPoolScope's.
class HostCallScope {
 public:
  template <typename... Args>
  explicit HostCallScope(Args... args) : exclude_(kHostCallExcluded), pool_(args...) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard exclude_;
  HostPoolScope pool_;
};

// Whether ops run at once on the calling thread (ANVIL_LAUNCH_BLOCKING=1).
bool launch_blocking();

// An op and what has been learned about it. Lives as long as the process.
class FallbackOp {
 public:
  // `kernel`: the op whose CPU kernel runs, with the same arguments; usually `op` itself.
  FallbackOp(const c10::OperatorHandle& op, const c10::OperatorHandle& kernel)
      : op_(op), kernel_(kernel), traits_(op.schema()) {}

  // Runs a call whose arguments are on top of the stack, and puts its results there. Gives the plan
  // by which the call was queued, or null.
  PlanRef call(torch::jit::Stack* stack);

 private:
  void learn_once();
  bool has_to_wait(const torch::jit::Stack& stack) const;
  bool make_key(const HostCall& call, const torch::jit::Stack& stack, PlanKey* key) const;
  PlanRef infer(const HostCall& call, const torch::jit::Stack& stack) const;
  void run_while_waiting(HostCall& call, torch::jit::Stack* stack, const PlanKey* key);
  void queue(HostCall& call, torch::jit::Stack* stack, anvilStream_t stream, const PlanKey& key,
             const PlanRef& plan);

  const c10::OperatorHandle op_;
  const c10::OperatorHandle kernel_;
  const OpTraits traits_;
  PlanCache plans_;

  std::once_flag learned_;
  bool always_waits_ = false;     // results that are no tensors, or of shapes that data decides
  bool waits_for_masks_ = false;  // shapes that data decides, where an index is a mask
  const c10::KernelFunction* shape_function_ = nullptr;  // see shape_functions.h
};

// Runs the CPU kernel of `op` for arguments on top of the stack while the caller waits.
void run_on_host(const c10::OperatorHandle& op, const OpTraits& traits,
                 const c10::OperatorHandle& kernel, torch::jit::Stack* stack);

// Registers the fallback for every op that has a CPU kernel and none of ours, and as the backend's
// fallback for ops that are registered later (custom operators). Registering each op by name keeps
// structured ops from decomposing first, which would cost a second dispatch. Called once, after all
// native kernels are registered.
void register_fallbacks();

}  // namespace anvil
