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
#include "core/storage.h"

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

at::Tensor to_host(const at::Tensor& tensor) {
  return tensor.device().is_cpu() ? tensor : host_alias(tensor);
}
template <typename Other>
const Other& to_host(const Other& other) {
  return other;
}

template <typename Op, typename Signature = typename Op::schema>
struct OnHost;

template <typename Op, typename... Args>
struct OnHost<Op, at::Tensor(Args...)> {
  static at::Tensor call(Args... args) {
    CommonDevice common;
    (common.see(args), ...);
    if (C10_UNLIKELY(!common.regular())) return general(args...);
    at::Tensor result;
    {
      const HostCallScope scope(common.index());
      result = Op::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), to_host(args)...);
    }
    c10::Storage storage =
        adopt_host_storage(share(result.storage()), c10::Device(kAnvil, common.index()));
    return device_tensor(std::move(result), std::move(storage));
  }

  // What the fallback does for every other op: it raises where it must, and says why.
  static at::Tensor general(Args... args) {
    static const c10::OperatorHandle op =
        c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    static const OpTraits traits(op.schema());
    torch::jit::Stack stack;
    torch::jit::push(stack, args...);
    run_on_host(op, traits, op, &stack);
    return std::move(stack.back()).toTensor();
  }
};

template <typename Op>
void implement(torch::Library& m) {
  const std::string name = std::string(Op::name).substr(std::string("aten::").size());
  const std::string overload = Op::overload_name;
  m.impl((overload.empty() ? name : name + "." + overload).c_str(), &OnHost<Op>::call);
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
