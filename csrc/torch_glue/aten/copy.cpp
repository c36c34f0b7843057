// SPDX-License-Identifier: Apache-2.0
// Copies between the device and the host, and within the device.
//
//   within the device      queued
//   host to device         queued; memory that is not pinned is copied first, since its owner may
//                          change it, unless the caller is to wait anyway and it is large
//   device to host         queued into pinned memory with non_blocking, else the caller waits
//   between devices        queued on the destination's stream, ordered with the source's by events
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/resize.h>
#include <torch/library.h>

#include <cstring>

#include "aten/fallback.h"
#include "aten/host_alias.h"
#include "core/command.h"
#include "core/pinned.h"
#include "core/stream.h"
#include "core/wait.h"

namespace anvil {
namespace {

using at::Tensor;

bool is_ours(const Tensor& tensor) { return tensor.device().type() == kAnvil; }

// Up to here staging pageable memory costs less than waiting for the stream.
constexpr size_t kStagedBytes = 1 << 20;

bool is_plain(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.is_contiguous() &&
         b.is_contiguous() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// Copies between tensors that the CPU can use, of any dtype and layout.
void copy_on_host(Tensor destination, const Tensor& source) {
  if (is_plain(destination, source)) {
    if (destination.nbytes() == 0) return;
    auto* to = destination.mutable_data_ptr();
    const auto* from = source.const_data_ptr();
    if (to == from) return;
    const auto distance = static_cast<const char*>(to) - static_cast<const char*>(from);
    if (static_cast<size_t>(std::abs(distance)) >= destination.nbytes() &&
        destination.nbytes() < (size_t{64} << 10)) {
      std::memcpy(to, from, destination.nbytes());
      return;
    }
  }
  at::_ops::copy_::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), destination, source,
                              /*non_blocking=*/false);
}

// A CPU tensor over pinned memory that does not keep it alive: its allocator does, see pinned.h.
Tensor pinned_alias(const Tensor& tensor) {
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  auto view = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(storage->nbytes()),
      at::DataPtr(const_cast<void*>(storage->data()), c10::Device(c10::kCPU)),
      /*allocator=*/nullptr, /*resizable=*/false);
  return host_view(tensor, c10::Storage(std::move(view)));
}

// What little a copy kernel needs for itself (a tile to transpose) is no tensor's: it comes from
// the system, so that figures do not depend on when the copy runs.
struct CopyRun {
  Tensor destination;  // both on the host
  Tensor source;

  void operator()() const {
    const c10::impl::ExcludeDispatchKeyGuard exclude(kHostCallExcluded);
    copy_on_host(destination, source);
  }
};

void queue_copy(const Tensor& self, const Tensor& source, Tensor to, Tensor from,
                anvilStream_t stream) {
  Accesses accesses(stream);
  accesses.write(self);
  accesses.read(source);
  submit("aten::copy_", accesses, CopyRun{std::move(to), std::move(from)});
}

void copy_within(Tensor& self, const Tensor& source, c10::DeviceIndex device) {
  // Overlap and shape errors belong to the caller, not to a later wait.
  TORCH_CHECK(at::get_overlap_status(self, source) != at::MemOverlapStatus::Partial,
              "unsupported operation: some elements of the input tensor and the written-to tensor "
              "refer to a single memory location. Please clone() the tensor before performing the "
              "operation.");
  queue_copy(self, source, host_alias(self), host_alias(source), current_stream_handle(device));
}

void copy_between(Tensor& self, const Tensor& source) {
  const c10::DeviceIndex to = self.device().index();
  const c10::DeviceIndex from = source.device().index();
  anvilStream_t target = current_stream_handle(to);
  anvilStream_t origin = current_stream_handle(from);
  anvilEvent_t event = nullptr;
  check(anvilEventCreate(&event, ANVIL_EVENT_DEFAULT));
  const std::unique_ptr<anvilEvent_st, decltype(&anvilEventDestroy)> owner(event,
                                                                           &anvilEventDestroy);
  check(anvilEventRecord(event, origin));
  check(anvilStreamWaitEvent(target, event));
  queue_copy(self, source, host_alias(self), host_alias(source), target);
  check(anvilEventRecord(event, target));
  check(anvilStreamWaitEvent(origin, event));
}

void copy_to_device(Tensor& self, const Tensor& source, bool non_blocking) {
  const c10::DeviceIndex device = self.device().index();
  anvilStream_t stream = current_stream_handle(device);
  const bool pinned = anvilHostIsPinned(source.const_data_ptr()) != 0;
  if (pinned && non_blocking) {
    queue_copy(self, source, host_alias(self), pinned_alias(source), stream);
    keep_pinned_until_now(source.const_data_ptr(), stream);
  } else if (anvilStreamIsCapturing(stream) != 0) {
    // What is staged now would be copied again at every replay, whatever the source holds then.
    const std::string reason =
        "A copy from " + std::string(pinned ? "pinned memory that blocks" : "pageable memory") +
        " cannot be captured: use pinned memory and non_blocking=True.";
    check(anvilStreamFailCapture(stream, reason.c_str()));
  } else if (non_blocking || source.nbytes() <= kStagedBytes) {
    queue_copy(self, source, host_alias(self), staged(source), stream);
  } else {
    const LaunchSection section(stream);
    Accesses accesses(stream);
    accesses.write(self);
    accesses.note_host_use("aten::copy_");
    wait_for_host_use(device, "aten::copy_");
    CopyRun{host_alias(self), source}();
  }
}

void copy_to_host(Tensor& self, const Tensor& source, bool non_blocking) {
  const c10::DeviceIndex device = source.device().index();
  anvilStream_t stream = current_stream_handle(device);
  if (non_blocking && anvilHostIsPinned(self.const_data_ptr()) != 0) {
    queue_copy(self, source, pinned_alias(self), host_alias(source), stream);
    keep_pinned_until_now(self.const_data_ptr(), stream);
    return;
  }
  Accesses accesses(stream);
  accesses.read(source);
  accesses.note_host_use("aten::copy_ to the host");
  wait_for_host_use(device, "aten::copy_ to the host");
  CopyRun{self, host_alias(source)}();
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  if (self.is_same(source)) return self;
  const Tensor& other = is_ours(self) ? source : self;
  if (!is_ours(other) && !other.device().is_cpu()) {
    // A third device: meet on the CPU.
    return self.copy_(source.to(c10::kCPU));
  }
  // Broadcasting is decided here, so that a wrong shape is the caller's error.
  const Tensor expanded = source.sizes() == self.sizes() ? source : source.expand(self.sizes());
  if (self.numel() == 0) return self;
  if (is_ours(self) && is_ours(source)) {
    if (self.device() == source.device()) {
      copy_within(self, expanded, self.device().index());
    } else {
      copy_between(self, expanded);
    }
  } else if (is_ours(self)) {
    copy_to_device(self, expanded, non_blocking);
  } else {
    copy_to_host(self, expanded, non_blocking);
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
