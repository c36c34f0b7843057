// SPDX-License-Identifier: Apache-2.0
// The Python module _C: a thin layer over the runtime and the glue. Everything a user sees is in
// vllm_anvil/device.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "aten/fallback.h"
#include "aten/host_alias.h"
#include "core/generator.h"
#include "core/hooks.h"
#include "core/stream.h"
#include "dispatch.h"

namespace py = pybind11;

namespace {

// Exceptions of c10 become the Python exceptions that torch uses, without a C++ backtrace.
template <typename Function>
void def(py::module_& m, const char* name, Function function) {
  m.def(name, torch::wrap_pybind_function(function));
}

py::dict device_properties(int device) {
  anvilDeviceProperties properties;
  anvil::check(anvilGetDeviceProperties(&properties, device));
  py::dict result;
  result["name"] = properties.name;
  result["cores"] = py::tuple(
      py::cast(std::vector<int>(properties.cores, properties.cores + properties.core_count)));
  result["numa_node"] = properties.numa_node;
  result["total_memory"] = properties.total_memory;
  result["physical_index"] = properties.physical_index;
  return result;
}

py::dict tag_stats(int device) {
  std::vector<anvilTagStats> stats(16);
  size_t count = 0;
  anvil::check(anvilMemGetTagStats(stats.data(), stats.size(), &count, device));
  if (count > stats.size()) {
    stats.resize(count);
    anvil::check(anvilMemGetTagStats(stats.data(), stats.size(), &count, device));
  }
  py::dict result;
  for (size_t i = 0; i < std::min(count, stats.size()); ++i) {
    py::dict entry;
    entry["allocated_bytes"] = stats[i].allocated_bytes;
    entry["reserved_bytes"] = stats[i].reserved_bytes;
    result[py::str(stats[i].tag)] = entry;
  }
  return result;
}

// Events are named by the address that torch.Event.event_id gives; 0 is one that was never
// recorded.
float event_elapsed_time(uintptr_t start, uintptr_t end) {
  TORCH_CHECK(start != 0 && end != 0,
              "Both events must be recorded before their elapsed time can be asked for.");
  float milliseconds = 0;
  anvil::check(anvilEventElapsedTime(&milliseconds, reinterpret_cast<anvilEvent_t>(start),
                                     reinterpret_cast<anvilEvent_t>(end)));
  return milliseconds;
}

void empty_cache(int device) { anvil::check(anvilMemEmptyCache(device)); }

at::Tensor host_alias(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().type() == anvil::kAnvil,
              "host_alias takes a tensor on an anvil device; got one on ", tensor.device());
  // The inner alias is for CPU kernels only; what leaves here is an ordinary CPU tensor over the
  // same twin.
  const at::Tensor inner = anvil::host_alias(tensor);
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(inner.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), inner.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(inner.sizes(), inner.strides(),
                                                      inner.storage_offset());
  return result;
}

std::string active_isa() {
  try {
    return std::string(anvil::kernels::active_isa());
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
  for (const std::string_view name : anvil::kernels::supported_isas()) names.emplace_back(name);
  return names;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  anvil::register_backend();
  anvil::register_fallbacks();

  def(m, "device_count", [] { return static_cast<int>(anvil::device_count()); });
  def(m, "current_device", [] { return static_cast<int>(anvil::current_device()); });
  def(m, "set_device", [](int device) { anvil::check(anvilSetDevice(device)); });
  def(m, "device_properties", &device_properties);
  def(m, "worker_count", [](int device) { return anvilWorkerCount(device); });
  def(m, "is_initialized", [] { return anvilIsInitialized() != 0; });
  def(m, "is_forked_child", [] { return anvilIsForkedChild() != 0; });
  m.def("default_generator",
        [](int device) { return anvil::default_generator(static_cast<c10::DeviceIndex>(device)); });
  def(m, "stream_priority", [](int device, int64_t id) {
    const c10::Device owner(anvil::kAnvil, static_cast<c10::DeviceIndex>(device));
    return anvil::stream_priority(c10::Stream(c10::Stream::UNSAFE, owner, id));
  });
  def(m, "event_elapsed_time", &event_elapsed_time);
  def(m, "empty_cache", &empty_cache);
  def(m, "tag_stats", &tag_stats);
  def(m, "push_memory_tag",
      [](const std::string& tag) { anvil::check(anvilMemPushTag(tag.c_str())); });
  def(m, "pop_memory_tag", [] { anvil::check(anvilMemPopTag()); });
  def(m, "host_alias", &host_alias);
  def(m, "active_isa", &active_isa);
  def(m, "supported_isas", &supported_isas);
}
