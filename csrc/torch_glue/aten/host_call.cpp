// SPDX-License-Identifier: Apache-2.0
#include "aten/host_call.h"

#include <ATen/core/stack.h>

#include <algorithm>

#include "core/generator.h"
#include "core/storage.h"

namespace anvil {
namespace {

// Arguments that other accelerators accept on the CPU beside tensors of the device.
bool may_be_on_host(const c10::Argument& argument) {
  const bool index_list =
      argument.name() == "indices" && argument.type()->kind() == c10::TypeKind::ListType;
  return index_list || argument.name() == "scalars";
}

}  // namespace

void HostCall::arguments_to_host(torch::jit::Stack& stack) {
  const auto& arguments = op_.schema().arguments();
  const size_t begin = stack.size() - traits_.argument_count;
  for (size_t i = 0; i < traits_.argument_count; ++i) {
    c10::IValue& value = stack[begin + i];
    if (value.isTensor()) {
      if (value.toTensor().defined()) value = tensor_to_host(value.toTensor(), arguments[i]);
    } else if (value.isList() || value.isDevice()) {
      value = value_to_host(value, arguments[i]);
    }
  }
  if (!found_device_) device_ = resolve_device(std::nullopt);
  if (C10_UNLIKELY(host_argument_ != nullptr) && !entries_.empty())
    raise_mixed(c10::kCPU, *host_argument_);
  if (traits_.generator.has_value()) {
    c10::IValue& value = stack[begin + *traits_.generator];
    value = host_generator(value.toOptional<at::Generator>(), device_.index());
  }
}

c10::IValue HostCall::value_to_host(const c10::IValue& value, const c10::Argument& argument) {
  if (value.isDevice()) {
    device_ = resolve_device(value.toDevice());
    found_device_ = true;
    return c10::Device(c10::kCPU);
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> result;
    result.reserve(value.toTensorList().size());
    for (const at::Tensor& tensor : value.toTensorVector()) {
      result.push_back(tensor.defined() ? tensor_to_host(tensor, argument) : tensor);
    }
    return result;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> result;
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      const bool present = tensor.has_value() && tensor->defined();
      result.push_back(present ? std::make_optional(tensor_to_host(*tensor, argument)) : tensor);
    }
    return result;
  }
  return value;
}

at::Tensor HostCall::tensor_to_host(const at::Tensor& tensor, const c10::Argument& argument) {
  const c10::Device device = tensor.device();
  if (C10_UNLIKELY(device.type() != kAnvil)) {
    return note_host_tensor(tensor, argument);
  }
  if (!found_device_) {
    device_ = device;
    found_device_ = true;
  } else if (C10_UNLIKELY(device_ != device)) {
    raise_mixed(device, argument);
  }
  // One tensor passed twice must be one alias, or in-place kernels would not see that they overlap.
  const bool written = is_written(argument);
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i].device.is_same(tensor)) continue;
    order_.push_back(i);
    entries_[i].written |= written;
    return entries_[i].host;
  }
  order_.push_back(static_cast<uint32_t>(entries_.size()));
  entries_.push_back({tensor, host_alias(tensor), written});
  return entries_.back().host;
}

at::Tensor HostCall::note_host_tensor(const at::Tensor& tensor, const c10::Argument& argument) {
  if (!tensor.device().is_cpu()) raise_mixed(tensor.device(), argument);
  const bool written = is_written(argument);
  const bool scalar = tensor.dim() == 0 && !written;
  if (!scalar && !may_be_on_host(argument)) host_argument_ = &argument;
  if (!stage_ || written) return tensor;
  return staged(tensor);
}

SeenArgument HostCall::after_run(const Entry& entry) {
  const c10::TensorImpl* device = entry.device.unsafeGetTensorImpl();
  const c10::TensorImpl* host = entry.host.unsafeGetTensorImpl();
  const bool moved = device->unsafe_storage().data() != host->unsafe_storage().data() ||
                     device->unsafe_storage().nbytes() != host->unsafe_storage().nbytes();
  const bool changed = moved || device->sizes() != host->sizes() ||
                       device->strides() != host->strides() ||
                       device->storage_offset() != host->storage_offset();
  return {entry.host, changed, moved};
}

void HostCall::resize(Entry& entry, const ResizedArgument& to) {
  c10::TensorImpl* device = entry.device.unsafeGetTensorImpl();
  c10::StorageImpl* storage = device->unsafe_storage().unsafeGetStorageImpl();
  if (storage->nbytes() < to.storage_bytes) resize_storage(*storage, to.storage_bytes);
  device->set_sizes_and_strides(to.sizes, to.strides);
  c10::TensorImpl* host = entry.host.unsafeGetTensorImpl();
  host->set_storage_keep_dtype(c10::Storage(host_twin(device->unsafe_storage())));
  host->set_sizes_and_strides(to.sizes, to.strides);
}

void HostCall::raise_mixed(c10::Device other, const c10::Argument& argument) const {
  TORCH_CHECK(
      false, "Expected all tensors to be on the same device, but found at least two devices, ",
      found_device_ ? device_ : c10::Device(kAnvil), " and ", other, "! (when checking argument ",
      argument.name(), " of ", c10::toString(op_.operator_name()), ")");
}

void HostCall::results_to_device(torch::jit::Stack& stack) {
  if (traits_.mutates) {
    for (const Entry& entry : entries_) follow_alias(entry.device, entry.host);
  }
  const size_t begin = stack.size() - traits_.return_count;
  for (size_t i = begin; i < stack.size(); ++i) {
    c10::IValue& value = stack[i];
    if (value.isTensor()) {
      if (value.toTensor().defined()) value = tensor_to_device(std::move(value).toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> result;
      for (at::Tensor& tensor : std::move(value).toTensorVector()) {
        result.push_back(tensor.defined() ? tensor_to_device(std::move(tensor)) : tensor);
      }
      value = std::move(result);
    }
  }
}

at::Tensor HostCall::tensor_to_device(at::Tensor host) {
  if (C10_UNLIKELY(!host.device().is_cpu())) return host;
  for (const Entry& entry : entries_) {
    if (entry.host.is_same(host)) return entry.device;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      host.layout() == c10::kStrided && host.unsafeGetTensorImpl()->has_storage(),
      c10::toString(op_.operator_name()), " gives a tensor of layout ", host.layout(),
      ", which anvil does not have; move the input to the CPU first.");
  const c10::StorageImpl* twin = host.storage().unsafeGetStorageImpl();
  for (const Entry& entry : entries_) {  // a view of an argument
    if (entry.host.storage().unsafeGetStorageImpl() == twin)
      return device_tensor(std::move(host), entry.device.storage());
  }
  for (const c10::Storage& storage : adopted_) {  // results that share memory with each other
    if (storage.data_ptr().get_context() == twin) return device_tensor(std::move(host), storage);
  }
  c10::Storage storage = adopt_host_storage(share(host.storage()), device_);
  if (traits_.shares_results) adopted_.push_back(storage);
  return device_tensor(std::move(host), std::move(storage));
}

}  // namespace anvil
