// SPDX-License-Identifier: Apache-2.0
#include "aten/launch_plan.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>

#include "aten/host_alias.h"

namespace anvil {
namespace {

// A kernel with more steps than this keeps its scratch to itself: placing it would cost the caller
// more than it is worth.
constexpr size_t kMostPlacedSteps = 64;

// Calls visit(tensor) for every tensor of the returns; false when they hold something else.
template <typename Visit>
bool visit_tensors(c10::ArrayRef<c10::IValue> returns, std::vector<int32_t>* list_lengths,
                   Visit&& visit) {
  for (const c10::IValue& value : returns) {
    if (value.isTensor()) {
      list_lengths->push_back(-1);
      visit(value.toTensor());
    } else if (value.isTensorList()) {
      const auto items = value.toListRef();
      list_lengths->push_back(static_cast<int32_t>(items.size()));
      for (const c10::IValue& item : items) visit(item.toTensor());
    } else {
      return false;
    }
  }
  return true;
}

ResultPlan describe(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  ResultPlan result;
  result.kind = ResultPlan::Kind::kNew;
  result.dtype = c10::typeMetaToScalarType(impl->dtype());
  result.offset = impl->storage_offset();
  result.keys = impl->key_set() & kLazyBits;
  result.sizes = impl->sizes();
  result.strides = impl->strides();
  return result;
}

template <typename Arguments, typename Get>
int32_t position_of(const at::Tensor& tensor, const Arguments& arguments, Get&& get) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (get(arguments[i]).is_same(tensor)) return static_cast<int32_t>(i);
  }
  return -1;
}

bool is_dense(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && tensor.unsafeGetTensorImpl()->has_storage();
}

// Takes the allocation at `address` out of the trace: it is made before the kernel runs.
void remove_allocation(MemoryTrace* trace, const void* address) {
  const auto found = std::find(trace->addresses.begin(), trace->addresses.end(), address);
  if (found == trace->addresses.end()) return;
  const auto gone = static_cast<int32_t>(found - trace->addresses.begin());
  trace->addresses.erase(found);
  trace->bytes.erase(trace->bytes.begin() + gone);
  std::erase_if(trace->steps, [gone](const MemoryStep& step) { return step.allocation == gone; });
  for (MemoryStep& step : trace->steps) {
    if (step.allocation > gone) --step.allocation;
  }
}

// Notes what the op made of a resized argument; false when it cannot be done beforehand.
bool add_resized(c10::ArrayRef<SeenArgument> arguments, size_t which, LaunchPlan* plan,
                 MemoryTrace* trace) {
  const at::Tensor& tensor = arguments[which].host;
  if (tensor.storage_offset() != 0) return false;
  const void* address = tensor.storage().data();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool shared = i != which && arguments[i].host.storage().is_alias_of(tensor.storage());
    if (shared) return false;
  }
  if (arguments[which].moved) remove_allocation(trace, address);
  plan->resized.push_back({static_cast<int32_t>(which), tensor.storage().nbytes(),
                           at::DimVector(tensor.sizes()), at::DimVector(tensor.strides())});
  return true;
}

}  // namespace

void PlanCache::put(const PlanKey& key, PlanRef plan) {
  const std::unique_lock lock(mutex_);
  if (plans_.size() >= kMost) plans_.clear();
  plans_[key] = std::move(plan);
}

PlanRef plan_from_run(c10::ArrayRef<c10::IValue> returns, c10::ArrayRef<SeenArgument> arguments,
                      MemoryTrace trace) {
  auto plan = std::make_shared<LaunchPlan>();
  plan->traced = true;
  plan->queueable = true;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].changed && !add_resized(arguments, i, plan.get(), &trace)) {
      plan->queueable = false;
    }
  }
  plan->placed.assign(trace.bytes.size(), false);
  const bool place_scratch = trace.steps.size() <= kMostPlacedSteps;
  for (const MemoryStep& step : trace.steps) {
    if (step.frees && place_scratch) plan->placed[static_cast<size_t>(step.allocation)] = true;
  }
  const auto add = [&](const at::Tensor& tensor) {
    ResultPlan result;
    if (tensor.defined() && !is_dense(tensor)) {
      plan->queueable = false;
    } else if (tensor.defined()) {
      const int32_t argument =
          position_of(tensor, arguments, [](const SeenArgument& seen) { return seen.host; });
      if (argument >= 0) {
        result.kind = ResultPlan::Kind::kArgument;
        result.argument = argument;
      } else {
        result = describe(tensor);
        result.storage_bytes = tensor.storage().nbytes();
        void* address = tensor.storage().mutable_data();
        for (size_t i = 0; i < trace.addresses.size(); ++i) {
          if (address == nullptr || trace.addresses[i] != address) continue;
          result.allocation = static_cast<int32_t>(i);
          plan->placed[i] = true;
        }
        // Memory that was there before the call: a view of an argument, or of something global.
        if (result.allocation < 0 && result.storage_bytes > 0) plan->queueable = false;
      }
    }
    plan->results.push_back(std::move(result));
  };
  if (!visit_tensors(returns, &plan->list_lengths, add)) plan->queueable = false;
  trace.addresses.clear();
  plan->memory = std::move(trace);
  return plan;
}

PlanRef plan_from_inference(c10::ArrayRef<c10::IValue> returns,
                            c10::ArrayRef<at::Tensor> arguments) {
  auto plan = std::make_shared<LaunchPlan>();
  plan->queueable = true;
  const auto add = [&](const at::Tensor& tensor) {
    ResultPlan result;
    if (tensor.defined()) {
      const int32_t argument =
          position_of(tensor, arguments, [](const at::Tensor& seen) { return seen; });
      if (argument >= 0) {
        result.kind = ResultPlan::Kind::kArgument;
        result.argument = argument;
      } else {
        result = describe(tensor);
        result.storage_bytes = at::detail::computeStorageNbytes(result.sizes, result.strides,
                                                                c10::elementSize(result.dtype),
                                                                static_cast<size_t>(result.offset));
        if (result.storage_bytes > 0) {
          result.allocation = static_cast<int32_t>(plan->memory.bytes.size());
          plan->memory.steps.push_back({result.allocation, /*frees=*/false});
          plan->memory.bytes.push_back(result.storage_bytes);
          plan->placed.push_back(true);
        }
      }
    }
    plan->results.push_back(std::move(result));
  };
  if (!visit_tensors(returns, &plan->list_lengths, add)) plan->queueable = false;
  return plan;
}

PlanRef plan_for_in_place() {
  auto plan = std::make_shared<LaunchPlan>();
  plan->queueable = true;
  plan->list_lengths = {-1};
  ResultPlan& result = plan->results.emplace_back();
  result.kind = ResultPlan::Kind::kArgument;
  result.argument = 0;
  return plan;
}

}  // namespace anvil
