// SPDX-License-Identifier: Apache-2.0
#include "aten/shape_inference.h"

#include <ATen/core/stack.h>

#include <limits>

#include "aten/fallback.h"

namespace anvil {
namespace {

// A storage without memory, large enough for whatever a shape function asks it for.
c10::Storage meta_storage() {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), std::numeric_limits<int64_t>::max(),
      at::DataPtr(nullptr, c10::Device(c10::kMeta)), /*allocator=*/nullptr, /*resizable=*/false));
}

at::Tensor meta_like(const at::Tensor& tensor, c10::Storage storage) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::DispatchKeySet lazy =
      impl->key_set() &
      c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  at::Tensor meta = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::Meta) | lazy, impl->dtype());
  c10::TensorImpl* out = meta.unsafeGetTensorImpl();
  out->set_sizes_and_strides(impl->sizes(), impl->strides(), impl->storage_offset());
  if (impl->is_wrapped_number()) out->set_wrapped_number(true);
  return meta;
}

// Meta tensors for the call's device tensors; the others are scalars on the CPU and stay.
class MetaTensors {
 public:
  explicit MetaTensors(c10::ArrayRef<at::Tensor> tensors) : originals_(tensors) {
    for (const at::Tensor& tensor : tensors) metas_.push_back(meta_like(tensor, storage(tensor)));
  }

  at::Tensor operator()(const at::Tensor& tensor) const {
    for (size_t i = 0; i < originals_.size(); ++i) {
      if (originals_[i].is_same(tensor)) return metas_[i];
    }
    return tensor;
  }

  c10::IValue value(const c10::IValue& value) const {
    if (value.isTensor()) return (*this)(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& item : value.toListRef()) list.push_back((*this)(item.toTensor()));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& item : value.toListRef()) {
        list.push_back(item.isTensor() ? std::make_optional((*this)(item.toTensor()))
                                       : std::nullopt);
      }
      return list;
    }
    if (value.isDevice()) return c10::Device(c10::kMeta);
    return value;
  }

  c10::ArrayRef<at::Tensor> metas() const { return metas_; }

  bool resized() const {
    for (size_t i = 0; i < metas_.size(); ++i) {
      if (metas_[i].sizes() != originals_[i].sizes() ||
          metas_[i].strides() != originals_[i].strides()) {
        return true;
      }
    }
    return false;
  }

 private:
  // Shared by those that share memory: some shape functions refuse arguments that overlap.
  c10::Storage storage(const at::Tensor& tensor) const {
    for (size_t i = 0; i < metas_.size(); ++i) {
      if (originals_[i].storage().is_alias_of(tensor.storage())) return metas_[i].storage();
    }
    return meta_storage();
  }

  const c10::ArrayRef<at::Tensor> originals_;
  c10::SmallVector<at::Tensor, 6> metas_;
};

}  // namespace

PlanRef infer_plan(const c10::OperatorHandle& op, const c10::KernelFunction* shape_function,
                   c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<at::Tensor> tensors) {
  const MetaTensors metas(tensors);
  torch::jit::Stack stack;
  for (const c10::IValue& argument : arguments) stack.push_back(metas.value(argument));
  {
    const c10::impl::ExcludeDispatchKeyGuard exclude(kHostCallExcluded);
    const c10::DispatchKeySet keys(c10::DispatchKey::Meta);
    if (shape_function != nullptr) {
      shape_function->callBoxed(op, keys, &stack);
    } else {
      op.redispatchBoxed(keys, &stack);
    }
  }
  if (metas.resized()) return nullptr;
  return plan_from_inference(stack, metas.metas());
}

}  // namespace anvil
