// SPDX-License-Identifier: Apache-2.0
// The ops that a model step calls most, without the boxing of arguments that the general fallback
// pays.
//
// Only ops whose results are new tensors are listed: nothing to follow afterwards, nothing to
// alias.
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sub_ops.h>
#include <torch/library.h>

#include "aten/fallback.h"
#include "aten/queued_call.h"
#include "core/command.h"
#include "core/stream.h"

namespace anvil {
namespace {

// The device of a call's tensors; none when they are not all on one device, or a CPU tensor that is
// no scalar joins.
class CommonDevice {
 public:
  void see(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      regular_ = false;
    } else if (tensor.device().type() == kAnvil) {
      regular_ = regular_ && (!index_.has_value() || *index_ == tensor.device().index()) &&
                 tensor.layout() == c10::kStrided;
      index_ = tensor.device().index();
    } else {
      regular_ = regular_ && tensor.device().is_cpu() && tensor.dim() == 0;
    }
  }
  template <typename Other>
  void see(const Other&) {}

  bool regular() const { return regular_ && index_.has_value(); }
  c10::DeviceIndex index() const { return *index_; }

 private:
  bool regular_ = true;
  std::optional<c10::DeviceIndex> index_;
};

std::string full_name(const std::string& name, const std::string& overload) {
  return overload.empty() ? name : name + "." + overload;
}

// Arguments as a command keeps them: host tensors, and copies of what the caller's arrays hold.
at::Tensor keep(const at::Tensor& tensor) {
  return tensor.device().is_cpu() ? staged(tensor) : host_alias(tensor);
}
struct KeptArray {
  std::optional<at::DimVector> values;
  operator at::OptionalIntArrayRef() const {  // NOLINT: it stands for the argument
    return values.has_value() ? at::OptionalIntArrayRef(*values) : at::OptionalIntArrayRef();
  }
};
KeptArray keep(at::OptionalIntArrayRef array) {
  if (!array.has_value()) return {};
  return {at::DimVector(array->begin(), array->end())};
}
template <typename Other>
Other keep(const Other& other) {
  return other;
}

void add_to_key(PlanKeyHasher& hasher, const at::Tensor& tensor) { hasher.tensor(tensor); }
void add_to_key(PlanKeyHasher& hasher, at::OptionalIntArrayRef array) {
  hasher.word(array.has_value() ? array->size() + 1 : 0);
  for (size_t i = 0; array.has_value() && i < array->size(); ++i) hasher.word((*array)[i]);
}
// The result's shape depends on what kind of number it is only.
void add_to_key(PlanKeyHasher& hasher, const at::Scalar& scalar) {
  hasher.word(static_cast<uint64_t>(scalar.type()));
}
void add_to_key(PlanKeyHasher& hasher, const c10::SymInt& value) {
  hasher.word(static_cast<uint64_t>(value.guard_int(__FILE__, __LINE__)));
}
void add_to_key(PlanKeyHasher& hasher, std::optional<c10::ScalarType> dtype) {
  hasher.word(dtype.has_value() ? static_cast<uint64_t>(*dtype) : 255);
}
void add_to_key(PlanKeyHasher& hasher, int64_t value) { hasher.word(static_cast<uint64_t>(value)); }
void add_to_key(PlanKeyHasher& hasher, bool value) { hasher.word(value ? 1 : 0); }

void add_read(Accesses& accesses, const at::Tensor& tensor) { accesses.read(tensor); }
template <typename Other>
void add_read(Accesses&, const Other&) {}

// The one result of a call by this plan, or no tensor.
bool is_one_new_tensor(const PlanRef& plan) {
  return plan != nullptr && plan->queueable && plan->traced && plan->list_lengths.size() == 1 &&
         plan->list_lengths[0] < 0 && plan->results[0].kind == ResultPlan::Kind::kNew;
}

template <typename Op, typename Signature = typename Op::schema>
struct OnHost;

template <typename Op, typename... Args>
struct OnHost<Op, at::Tensor(Args...)> {
  static at::Tensor call(Args... args) {
    CommonDevice common;
    (common.see(args), ...);
    if (C10_UNLIKELY(!common.regular() || launch_blocking())) return general(args...);
    anvilStream_t stream = current_stream_handle(common.index());
    PlanKeyHasher hasher;
    (add_to_key(hasher, args), ...);
    PlanRef plan = plans().find(hasher.key());
    if (C10_UNLIKELY(plan == nullptr)) return general(args...);

    const LaunchSection section(stream);
    PlacedCall placed(plan, stream, common.index());
    Accesses accesses(stream);
    (add_read(accesses, args), ...);
    at::Tensor result = placed.results()[0];
    accesses.write(result);
    submit(op_name(), accesses,
           [arguments = std::make_tuple(keep(args)...), places = placed.places()] {
             PlannedMemory memory = places.memory();
             const HostCallScope scope(places.device, &memory, nullptr);
             places.settle(0, std::apply(
                                  [](const auto&... kept) {
                                    return Op::redispatch(
                                        c10::DispatchKeySet(c10::DispatchKey::CPU), kept...);
                                  },
                                  arguments));
           });
    return result;
  }

  // What the fallback does for every other op: it learns what results look like, raises where it
  // must, and says why.
  static at::Tensor general(Args... args) {
    static const c10::OperatorHandle op =
        c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    static FallbackOp fallback(op, op);
    torch::jit::Stack stack;
    torch::jit::push(stack, args...);
    PlanRef plan = fallback.call(&stack);
    if (is_one_new_tensor(plan)) {
      PlanKeyHasher hasher;
      (add_to_key(hasher, args), ...);
      plans().put(hasher.key(), std::move(plan));
    }
    return std::move(stack.back()).toTensor();
  }

  static PlanCache& plans() {
    static auto* cache = new PlanCache;
    return *cache;
  }

  static const char* op_name() {
    static const auto* name = new std::string(full_name(Op::name, Op::overload_name));
    return name->c_str();
  }
};

template <typename Op>
void implement(torch::Library& m) {
  const std::string name = full_name(Op::name, Op::overload_name);
  m.impl(name.substr(std::string("aten::").size()).c_str(), &OnHost<Op>::call);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  implement<at::_ops::_softmax>(m);
  implement<at::_ops::add_Tensor>(m);
  implement<at::_ops::addmm>(m);
  implement<at::_ops::bmm>(m);
  implement<at::_ops::div_Tensor>(m);
  implement<at::_ops::embedding>(m);
  implement<at::_ops::gather>(m);
  implement<at::_ops::index_select>(m);
  implement<at::_ops::mean_dim>(m);
  implement<at::_ops::mm>(m);
  implement<at::_ops::mul_Tensor>(m);
  implement<at::_ops::neg>(m);
  implement<at::_ops::pow_Tensor_Scalar>(m);
  implement<at::_ops::rsqrt>(m);
  implement<at::_ops::silu>(m);
  implement<at::_ops::sub_Tensor>(m);
}

}  // namespace
}  // namespace anvil
