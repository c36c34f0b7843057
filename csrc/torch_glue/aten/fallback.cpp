// SPDX-License-Identifier: Apache-2.0
#include "aten/fallback.h"

#include <algorithm>
#include <unordered_map>

#include "aten/queued_call.h"
#include "aten/shape_functions.h"
#include "aten/shape_inference.h"
#include "core/command.h"
#include "core/stream.h"
#include "core/wait.h"

namespace anvil {
namespace {

bool is_mask(const at::Tensor& tensor) {
  return tensor.defined() &&
         (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
}

// Which tensors are the same, and where they lie relative to each other: an op that writes may
// refuse, or work differently, when they overlap.
void add_overlaps(PlanKeyHasher* hasher, const HostCall& call) {
  for (const uint32_t which : call.order()) hasher->word(which);
  const auto tensors = call.tensors();
  const auto memory = [&](size_t i) {
    return tensors[i].host.unsafeGetTensorImpl()->unsafe_storage().data();
  };
  constexpr size_t kFew = 16;  // beyond, lists of tensors: then a table is worth its making
  std::unordered_map<const void*, size_t> table;
  const auto first_with_the_memory_of = [&](size_t i) {
    if (tensors.size() > kFew) return table.emplace(memory(i), i).first->second;
    size_t first = 0;
    while (memory(first) != memory(i)) ++first;
    return first;
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t first = first_with_the_memory_of(i);
    if (first == i) continue;
    const at::Tensor& other = tensors[first].host;
    hasher->word(i << 32 | first);
    hasher->word(static_cast<uint64_t>(
        tensors[i].host.storage_offset() * static_cast<int64_t>(tensors[i].host.element_size()) -
        other.storage_offset() * static_cast<int64_t>(other.element_size())));
  }
}

Accesses accesses_of(const HostCall& call, anvilStream_t stream) {
  Accesses accesses(stream);
  for (const HostCall::Entry& entry : call.tensors()) {
    accesses.add(entry.device,
                 entry.written ? ANVIL_ACCESS_READ | ANVIL_ACCESS_WRITE : ANVIL_ACCESS_READ);
  }
  return accesses;
}

// Replaces the arguments on top of the stack by the results of a queued call.
void push_results(const LaunchPlan& plan, c10::ArrayRef<at::Tensor> created,
                  c10::ArrayRef<HostCall::Entry> tensors, torch::jit::Stack* stack) {
  size_t next = 0;
  const auto take = [&]() -> at::Tensor {
    const ResultPlan& result = plan.results[next];
    const bool argument = result.kind == ResultPlan::Kind::kArgument;
    const at::Tensor& tensor =
        argument ? tensors[static_cast<size_t>(result.argument)].device : created[next];
    ++next;
    return tensor;
  };
  for (const int32_t length : plan.list_lengths) {
    if (length < 0) {
      stack->emplace_back(take());
      continue;
    }
    c10::List<at::Tensor> list;
    list.reserve(static_cast<size_t>(length));
    for (int32_t i = 0; i < length; ++i) list.push_back(take());
    stack->emplace_back(std::move(list));
  }
}

// A queued call of a CPU kernel, boxed.
struct BoxedRun {
  c10::OperatorHandle kernel;
  torch::jit::Stack arguments;  // host tensors
  PlacedCall::Places places;
  // What the first run of a plan from shape inference learns, for the calls after it.
  PlanCache* learner;
  PlanKey key;
  std::vector<at::Tensor> tensors;  // the device's among the arguments; for the learner only

  void operator()() {
    static thread_local torch::jit::Stack stack;
    stack.assign(arguments.begin(), arguments.end());
    PlannedMemory memory = places.memory();
    MemoryTrace trace;
    const HostCallScope scope(places.device, &memory, learner != nullptr ? &trace : nullptr);
    try {
      kernel.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
      size_t position = 0;
      for (const c10::IValue& value : stack) {
        if (value.isTensor()) {
          places.settle(position++, value.toTensor());
          continue;
        }
        for (const c10::IValue& item : value.toListRef())
          places.settle(position++, item.toTensor());
      }
      if (learner != nullptr) learn(stack, std::move(trace));
    } catch (...) {
      stack.clear();
      throw;
    }
    stack.clear();
  }

  void learn(const torch::jit::Stack& returns, MemoryTrace trace) {
    std::vector<SeenArgument> seen;
    for (const at::Tensor& tensor : tensors) seen.push_back({tensor});
    PlanRef plan = plan_from_run(returns, seen, std::move(trace));
    if (plan->queueable) learner->put(key, std::move(plan));
    learner = nullptr;
    tensors.clear();
  }
};

}  // namespace

bool launch_blocking() {
  static const bool blocking = anvilIsLaunchBlocking() != 0;
  return blocking;
}

void FallbackOp::learn_once() {
  std::call_once(learned_, [this] {
    const bool dynamic =
        op_.hasTag(at::Tag::dynamic_output_shape) || op_.hasTag(at::Tag::data_dependent_output);
    waits_for_masks_ = dynamic && (traits_.name == "aten::index.Tensor" ||
                                   traits_.name == "aten::index.Tensor_out" ||
                                   traits_.name == "aten::_unsafe_index.Tensor");
    always_waits_ = !traits_.returns_tensors || (dynamic && !waits_for_masks_);
    shape_function_ = find_shape_function(kernel_);
  });
}

bool FallbackOp::has_to_wait(const torch::jit::Stack& stack) const {
  if (always_waits_) return true;
  if (!waits_for_masks_) return false;
  const c10::IValue& indices = stack[stack.size() - traits_.argument_count + 1];
  const auto items = indices.toListRef();
  return std::any_of(items.begin(), items.end(), [](const c10::IValue& index) {
    return index.isTensor() && is_mask(index.toTensor());
  });
}

bool FallbackOp::make_key(const HostCall& call, const torch::jit::Stack& stack,
                          PlanKey* key) const {
  PlanKeyHasher hasher;
  const size_t begin = stack.size() - traits_.argument_count;
  for (size_t i = 0; i < traits_.argument_count; ++i) {
    const c10::IValue& value = stack[begin + i];
    if (value.isTensor()) {
      hasher.tensor(value.toTensor());
    } else if (!hasher.value(value, traits_.kind_only[i])) {
      return false;
    }
  }
  if (traits_.mutates) add_overlaps(&hasher, call);
  *key = hasher.key();
  return true;
}

PlanRef FallbackOp::infer(const HostCall& call, const torch::jit::Stack& stack) const {
  std::vector<at::Tensor> tensors;
  for (const HostCall::Entry& entry : call.tensors()) tensors.push_back(entry.host);
  const auto arguments =
      c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - traits_.argument_count);
  return infer_plan(kernel_, shape_function_, arguments, tensors);
}

PlanRef FallbackOp::call(torch::jit::Stack* stack) {
  HostCall call(op_, traits_, /*stage=*/true);
  call.arguments_to_host(*stack);
  learn_once();
  anvilStream_t stream = current_stream_handle(call.device().index());
  const bool capturing = anvilStreamIsCapturing(stream) != 0;
  if (launch_blocking() && !capturing) {
    run_while_waiting(call, stack, nullptr);
    return nullptr;
  }
  PlanKey key;
  if (has_to_wait(*stack) || !make_key(call, *stack, &key)) {
    run_while_waiting(call, stack, nullptr);
    return nullptr;
  }
  PlanRef plan = plans_.find(key);
  const bool may_infer =
      shape_function_ != nullptr ||
      (capturing && kernel_.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta));
  if (plan == nullptr && traits_.writes_its_only_tensor && call.tensors().size() == 1) {
    plan = plan_for_in_place();
    plans_.put(key, plan);
  }
  if (plan == nullptr && may_infer) {
    plan = infer(call, *stack);
    if (shape_function_ != nullptr && plan != nullptr) plans_.put(key, plan);
  }
  if (plan == nullptr || !plan->queueable) {
    run_while_waiting(call, stack, plan == nullptr ? &key : nullptr);
    return nullptr;
  }
  queue(call, stack, stream, key, plan);
  return plan;
}

void FallbackOp::run_while_waiting(HostCall& call, torch::jit::Stack* stack, const PlanKey* key) {
  const c10::DeviceIndex device = call.device().index();
  anvilStream_t stream = current_stream_handle(device);
  const LaunchSection section(stream);
  if (launch_blocking()) {
    refuse_while_capturing(stream, traits_.name.c_str());
  } else {
    accesses_of(call, stream).note_host_use(traits_.name.c_str());
    wait_for_host_use(device, traits_.name.c_str());
  }
  MemoryTrace trace;
  {
    const HostCallScope scope(stream, key != nullptr ? &trace : nullptr);
    kernel_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  if (key != nullptr) {
    std::vector<SeenArgument> seen;
    for (const HostCall::Entry& entry : call.tensors()) {
      seen.push_back(HostCall::after_run(entry));
    }
    const auto returns =
        c10::ArrayRef<c10::IValue>(*stack).slice(stack->size() - traits_.return_count);
    plans_.put(*key, plan_from_run(returns, seen, std::move(trace)));
  }
  call.results_to_device(*stack);
}

void FallbackOp::queue(HostCall& call, torch::jit::Stack* stack, anvilStream_t stream,
                       const PlanKey& key, const PlanRef& plan) {
  const LaunchSection section(stream);
  for (const ResizedArgument& to : plan->resized) {
    HostCall::resize(call.tensor(static_cast<size_t>(to.argument)), to);
  }
  PlacedCall placed(plan, stream, call.device().index());
  Accesses accesses = accesses_of(call, stream);
  for (const at::Tensor& result : placed.results()) {
    if (result.defined()) accesses.write(result);
  }
  const auto begin = stack->end() - static_cast<std::ptrdiff_t>(traits_.argument_count);
  BoxedRun run{
      kernel_,
      torch::jit::Stack(std::make_move_iterator(begin), std::make_move_iterator(stack->end())),
      placed.places(),
      plan->traced ? nullptr : &plans_,
      key,
      {}};
  if (!plan->traced) {
    for (const HostCall::Entry& entry : call.tensors()) run.tensors.push_back(entry.host);
  }
  stack->erase(begin, stack->end());
  submit(traits_.name.c_str(), accesses, std::move(run));
  push_results(*plan, placed.results(), call.tensors(), stack);
}

void run_on_host(const c10::OperatorHandle& op, const OpTraits& traits,
                 const c10::OperatorHandle& kernel, torch::jit::Stack* stack) {
  HostCall call(op, traits, /*stage=*/false);
  call.arguments_to_host(*stack);
  const c10::DeviceIndex device = call.device().index();
  if (launch_blocking()) {
    refuse_while_capturing(current_stream_handle(device), traits.name.c_str());
  } else {
    wait_for_host_use(device, traits.name.c_str());
  }
  {
    const HostCallScope scope(current_stream_handle(device), nullptr);
    kernel.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  call.results_to_device(*stack);
}

}  // namespace anvil
