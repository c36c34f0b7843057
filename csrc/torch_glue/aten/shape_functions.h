// SPDX-License-Identifier: Apache-2.0
// PyTorch's shape functions in C++: those of its structured ops, the very ones that the CPU kernels
// of these ops use.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace anvil {

// The op's shape function, or null. Called with meta tensors; costs about a microsecond.
const c10::KernelFunction* find_shape_function(const c10::OperatorHandle& op);

}  // namespace anvil
