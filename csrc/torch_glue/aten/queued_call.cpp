// SPDX-License-Identifier: Apache-2.0
#include "aten/queued_call.h"

#include <ATen/ops/copy_ops.h>

#include "core/storage.h"

namespace anvil {

PlacedCall::PlacedCall(PlanRef plan, anvilStream_t stream, c10::DeviceIndex device)
    : plan_(std::move(plan)), stream_(stream), device_(device) {
  const size_t count = plan_->allocation_count();
  blocks_.assign(count, nullptr);
  addresses_.assign(count, nullptr);
  try {
    for (const MemoryStep& step : plan_->memory.steps) {
      const auto i = static_cast<size_t>(step.allocation);
      if (step.frees) {
        check(anvilFree(std::exchange(blocks_[i], nullptr)));
      } else if (plan_->placed[i]) {
        check(anvilMallocAsync(&blocks_[i], &addresses_[i], plan_->memory.bytes[i], stream_,
                               ANVIL_ALLOC_DEFAULT));
      }
    }
    c10::SmallVector<c10::Storage, 4> storages(count);
    results_.resize(plan_->results.size());
    for (size_t r = 0; r < results_.size(); ++r) {
      const ResultPlan& result = plan_->results[r];
      if (result.kind != ResultPlan::Kind::kNew) continue;
      c10::Storage storage;
      if (result.allocation < 0) {
        storage = storage_over(nullptr, nullptr, 0, stream_, device_);
      } else {
        const auto i = static_cast<size_t>(result.allocation);
        if (!storages[i]) {
          storages[i] = storage_over(std::exchange(blocks_[i], nullptr), addresses_[i],
                                     result.storage_bytes, stream_, device_);
        }
        storage = storages[i];
      }
      results_[r] = at::detail::make_tensor<c10::TensorImpl>(
          std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1) | result.keys,
          c10::scalarTypeToTypeMeta(result.dtype));
      results_[r].unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes, result.strides,
                                                               result.offset);
    }
  } catch (...) {
    free_blocks();
    throw;
  }
}

PlacedCall::~PlacedCall() { free_blocks(); }

void PlacedCall::free_blocks() {
  for (anvilBlock_t block : blocks_) anvilFree(block);
}

PlacedCall::Places PlacedCall::places() const {
  Places places{plan_, device_, addresses_, {}};
  for (const at::Tensor& result : results_) {
    places.twins.push_back(result.defined() ? host_twin(result.storage()) : nullptr);
  }
  return places;
}

void PlacedCall::Places::settle(size_t position, const at::Tensor& result) const {
  const ResultPlan& expected = plan->results[position];
  if (expected.kind != ResultPlan::Kind::kNew) return;
  const void* address =
      expected.allocation < 0 ? nullptr : addresses[static_cast<size_t>(expected.allocation)];
  TORCH_CHECK(result.sizes() == expected.sizes, "a result of shape ",
              at::IntArrayRef(expected.sizes),
              " was expected from earlier calls with such arguments, but the kernel gave ",
              result.sizes(), ". Please report this; ANVIL_LAUNCH_BLOCKING=1 works around it.");
  if (expected.storage_bytes == 0) return;
  if (result.storage().data() == address && result.strides() == expected.strides &&
      result.storage_offset() == expected.offset && result.scalar_type() == expected.dtype) {
    return;
  }
  // The kernel took other memory than when it was traced, or PyTorch's shape function and its CPU
  // kernel disagree on strides.
  at::Tensor target = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(twins[position]),
      c10::DispatchKeySet(c10::DispatchKey::CPU) | expected.keys,
      c10::scalarTypeToTypeMeta(expected.dtype));
  target.unsafeGetTensorImpl()->set_sizes_and_strides(expected.sizes, expected.strides,
                                                      expected.offset);
  at::_ops::copy_::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), target, result,
                              /*non_blocking=*/false);
}

}  // namespace anvil
