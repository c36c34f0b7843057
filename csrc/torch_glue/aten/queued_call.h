// SPDX-License-Identifier: Apache-2.0
// The two halves of a call that is queued by its plan: what the caller gets at once, and what the
// command does with it later.
#pragma once

#include <ATen/core/Tensor.h>

#include "aten/launch_plan.h"
#include "core/command.h"

namespace anvil {

// Memory for a call's results and its kernel's scratch, in the order of a stream, and the results
// as device tensors over it. Scratch is free again for what is submitted later as soon as this is
// destroyed, which has to be after the submission.
class PlacedCall {
 public:
  PlacedCall(PlanRef plan, anvilStream_t stream, c10::DeviceIndex device);
  ~PlacedCall();
  PlacedCall(const PlacedCall&) = delete;
  PlacedCall& operator=(const PlacedCall&) = delete;

  // The results that are new tensors, by position in the plan; others are undefined.
  c10::ArrayRef<at::Tensor> results() const { return results_; }

  // What the command needs. May be run again and again.
  struct Places {
    PlanRef plan;
    c10::DeviceIndex device;
    c10::SmallVector<void*, 4> addresses;  // by allocation
    // By result: the twin of its storage; null where it has none.
    c10::SmallVector<c10::intrusive_ptr<c10::StorageImpl>, 2> twins;

    PlannedMemory memory() const {
      return {plan->traced ? &plan->memory : nullptr, addresses.data(), plan->memory.bytes.data(),
              addresses.size()};
    }
    // Puts a result where the caller expects it, unless the kernel wrote it there already.
    void settle(size_t position, const at::Tensor& result) const;
  };
  Places places() const;

 private:
  void free_blocks();

  const PlanRef plan_;
  anvilStream_t const stream_;
  const c10::DeviceIndex device_;
  c10::SmallVector<anvilBlock_t, 4> blocks_;  // by allocation; null: none, or a storage's now
  c10::SmallVector<void*, 4> addresses_;
  c10::SmallVector<at::Tensor, 2> results_;
};

}  // namespace anvil
