// SPDX-License-Identifier: Apache-2.0
// Copies between the device and the host, and within the device.
#include <ATen/core/Tensor.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/resize.h>
#include <torch/library.h>

#include <cstring>

#include "aten/fallback.h"
#include "aten/host_alias.h"
#include "core/stream.h"

namespace anvil {
namespace {

using at::Tensor;

bool is_ours(const Tensor& tensor) { return tensor.device().type() == kAnvil; }

// Below this a call into the stream costs more than the copy.
constexpr size_t kInlineBytes = 64 << 10;

bool is_plain(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.is_contiguous() &&
         b.is_contiguous() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

bool overlap(const char* a, const char* b, size_t bytes) { return a < b + bytes && b < a + bytes; }

void run_copy_kernel(const Tensor& destination, const Tensor& source, c10::DeviceIndex device) {
  Tensor to = is_ours(destination) ? host_alias(destination) : destination;
  const Tensor from = is_ours(source) ? host_alias(source) : source;
  const HostCallScope scope(device);
  at::_ops::copy_::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), to, from,
                              /*non_blocking=*/false);
}

Tensor& copy_(Tensor& self, const Tensor& source, bool /*non_blocking*/) {
  if (self.is_same(source)) return self;
  const Tensor& ours = is_ours(self) ? self : source;
  const Tensor& other = is_ours(self) ? source : self;
  if (!is_ours(other) && !other.device().is_cpu()) {
    // A third device: meet on the CPU.
    return self.copy_(source.to(c10::kCPU));
  }
  const c10::DeviceIndex device = ours.device().index();
  if (!is_plain(self, source)) {
    run_copy_kernel(self, source, device);
    return self;
  }
  const size_t bytes = self.nbytes();
  if (bytes == 0) return self;
  auto* to = static_cast<char*>(self.mutable_data_ptr());
  const auto* from = static_cast<const char*>(source.const_data_ptr());
  if (to == from) return self;
  if (overlap(to, from, bytes)) {
    run_copy_kernel(self, source, device);  // raises torch's own error
  } else if (bytes <= kInlineBytes) {
    std::memcpy(to, from, bytes);
  } else {
    check(anvilMemcpyAsync(to, from, bytes, stream_handle(current_stream(device))));
  }
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& destination, bool non_blocking) {
  Tensor target = destination;
  copy_(target, self, non_blocking);
  return destination;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& destination) {
  destination.resize_(self.sizes());
  return copy_from(self, destination, /*non_blocking=*/false);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
}

}  // namespace
}  // namespace anvil
