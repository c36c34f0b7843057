// SPDX-License-Identifier: Apache-2.0
// What is known of an op's results before it runs.
//
// A fallback op can only be queued when the caller can have its results at once: their shapes, and
// memory for them. Both follow from the arguments' shapes, so they are learned once: by running
// the op and looking (which blocks), or, where PyTorch can infer shapes in C++, by asking. From
// then on every call with such arguments is queued.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "aten/plan_key.h"
#include "core/host_pool.h"

namespace anvil {

struct ResultPlan {
  enum class Kind { kNew, kArgument, kUndefined };

  Kind kind = Kind::kUndefined;
  int32_t argument = -1;    // kArgument: which of the call's device tensors
  int32_t allocation = -1;  // kNew: which allocation is its storage; -1: it has no bytes
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  int64_t offset = 0;
  size_t storage_bytes = 0;
  c10::DispatchKeySet keys;  // conjugate and negative bits
  at::DimVector sizes;
  at::DimVector strides;
};

// An argument that the op resizes: `out=` of another shape, often an empty tensor.
struct ResizedArgument {
  int32_t argument;  // which of the call's device tensors
  size_t storage_bytes;
  at::DimVector sizes;
  at::DimVector strides;
};

struct LaunchPlan {
  // False: such calls have to run while the caller waits (a result that is a view of an argument).
  bool queueable = false;
  // Whether `memory` is what the kernel was seen to do. Otherwise it names the results' storages
  // only, and the first run will tell.
  bool traced = false;
  std::vector<ResultPlan> results;  // all tensors of all returns, in order
  std::vector<ResizedArgument> resized;
  std::vector<int32_t> list_lengths;  // by return: number of tensors of a list, -1 for one tensor
  MemoryTrace memory;
  std::vector<bool> placed;  // by allocation: a result, or freed by the kernel itself

  size_t allocation_count() const { return memory.bytes.size(); }
};

using PlanRef = std::shared_ptr<const LaunchPlan>;

// Plans of one op.
class PlanCache {
 public:
  PlanRef find(const PlanKey& key) const {
    const std::shared_lock lock(mutex_);
    const auto found = plans_.find(key);
    return found == plans_.end() ? nullptr : found->second;
  }
  void put(const PlanKey& key, PlanRef plan);

 private:
  // An op whose shapes never repeat must not fill the memory.
  static constexpr size_t kMost = 4096;

  mutable std::shared_mutex mutex_;
  std::unordered_map<PlanKey, PlanRef, PlanKey::Hash> plans_;
};

// A tensor of the call as the CPU kernel left it.
struct SeenArgument {
  at::Tensor host;
  bool changed = false;  // it has another shape or other memory than before
  bool moved = false;    // it has other memory
};

// The plan that a run of the kernel shows. `returns` are its return values, still host tensors;
// `trace` holds addresses.
PlanRef plan_from_run(c10::ArrayRef<c10::IValue> returns, c10::ArrayRef<SeenArgument> arguments,
                      MemoryTrace trace);

// The plan that shape inference gives: `returns` are meta tensors, `arguments` those that stood for
// the call's device tensors.
PlanRef plan_from_inference(c10::ArrayRef<c10::IValue> returns,
                            c10::ArrayRef<at::Tensor> arguments);

// The plan of an op that changes its only tensor in place.
PlanRef plan_for_in_place();

}  // namespace anvil
