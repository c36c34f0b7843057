// SPDX-License-Identifier: Apache-2.0
// Device tensors seen as CPU tensors, and CPU results seen as device tensors. Nothing is ever
// copied.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/device.h"

namespace anvil {

// Bits of a tensor that CPU kernels read and that travel with it.
inline constexpr c10::DispatchKeySet kLazyBits = c10::DispatchKeySet(
    {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});

// A CPU tensor over the same memory, with the same sizes, strides, offset and dtype. Tensors that
// share a storage have aliases that share one too. Raises for layouts without a storage (sparse).
at::Tensor host_alias(const at::Tensor& tensor);

// A CPU tensor over `storage`, with the sizes, strides, offset and dtype of `tensor`; for CPU
// kernels only, see host_alias.
at::Tensor host_view(const at::Tensor& tensor, c10::Storage storage);

// A CPU tensor over the memory of a device tensor, for anyone: waits for the device, and keeps the
// memory.
at::Tensor host_tensor(const at::Tensor& tensor);

// A device tensor over the memory of a pinned CPU tensor, which it keeps: commands read and write
// the host's tensor itself. Raises for memory that isn't pinned, whose host writes nothing could
// order.
at::Tensor device_alias(const at::Tensor& tensor, c10::DeviceIndex device);

// A copy of a CPU tensor that a command keeps, since the caller may change the tensor before the
// command has run.
at::Tensor staged(const at::Tensor& tensor);

// The device tensor over a CPU tensor's memory, which it takes over; `storage` is the device
// storage whose twin the CPU tensor uses.
at::Tensor device_tensor(at::Tensor host, c10::Storage storage);

// After a CPU kernel worked on `alias` in place: gives `tensor` the alias's storage size, sizes and
// strides.
void follow_alias(const at::Tensor& tensor, const at::Tensor& alias);

}  // namespace anvil
