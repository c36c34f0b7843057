// SPDX-License-Identifier: Apache-2.0
// Results' shapes from PyTorch's own shape functions, without running anything.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "aten/launch_plan.h"

namespace anvil {

// Calls `shape_function`, or, where it is null, what PyTorch has registered for meta tensors (which
// may be Python, and may differ in strides). `arguments` are the call's, as host tensors; `tensors`
// are those among them that are the device's, in order. Raises what the op itself would raise on
// such shapes. Null where an argument would be resized: what its memory will be, a run has to show.
PlanRef infer_plan(const c10::OperatorHandle& op, const c10::KernelFunction* shape_function,
                   c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<at::Tensor> tensors);

}  // namespace anvil
