// SPDX-License-Identifier: Apache-2.0
// The Python module _C: a thin layer over the runtime and the glue. Everything a user sees is in
// vllm_anvil/device.
#include <torch/csrc/utils/device_lazy_init.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "aten/fallback.h"
#include "aten/host_alias.h"
#include "bindings.h"
#include "core/command.h"
#include "core/generator.h"
#include "core/hooks.h"
#include "core/stream.h"
#include "core/wait.h"
#include "dispatch.h"

namespace py = pybind11;

namespace {

using anvil::bindings::def;

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

size_t suspend_memory(int device, const std::string& tag,
                      const std::optional<std::string>& folder) {
  size_t bytes = 0;
  anvil::check(
      anvilMemSuspend(&bytes, device, tag.c_str(), folder.has_value() ? folder->c_str() : nullptr));
  return bytes;
}

size_t resume_memory(int device, const std::string& tag) {
  size_t bytes = 0;
  anvil::check(anvilMemResume(&bytes, device, tag.c_str()));
  return bytes;
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

// A command that takes a while, for tests and measurements.
void sleep_on_device(int device, int64_t microseconds) {
  const anvil::Accesses nothing(
      anvil::current_stream_handle(static_cast<c10::DeviceIndex>(device)));
  anvil::submit("sleep", nothing, [microseconds] {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  });
}

at::Tensor host_alias(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().type() == anvil::kAnvil,
              "host_alias takes a tensor on an anvil device; got one on ", tensor.device());
  return anvil::host_tensor(tensor);
}

at::Tensor device_alias(const at::Tensor& tensor, int device) {
  // It may be the first tensor of the device, before which torch takes waiting for nothing to do.
  torch::utils::device_lazy_init(anvil::kAnvil);
  return anvil::device_alias(tensor, static_cast<c10::DeviceIndex>(device));
}

// Around every wait for the device: a command may need the lock to drop a Python object.
void* release_gil() { return PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr; }
void take_gil(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }

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
  anvil::set_wait_hooks({.enter = &release_gil, .leave = &take_gil});

  def(m, "device_count", [] { return static_cast<int>(anvil::device_count()); });
  def(m, "current_device", [] { return static_cast<int>(anvil::current_device()); });
  def(m, "set_device", [](int device) { anvil::check(anvilSetDevice(device)); });
  def(m, "device_properties", &device_properties);
  def(m, "worker_count", [](int device) { return anvilWorkerCount(device); });
  def(m, "set_worker_count",
      [](int device, int count) { anvil::check(anvilSetWorkerCount(device, count)); });
  def(m, "is_initialized", [] { return anvilIsInitialized() != 0; });
  def(m, "is_in_use", [] { return anvilIsInUse() != 0; });
  def(m, "is_forked_child", [] { return anvilIsForkedChild() != 0; });
  m.def("default_generator",
        [](int device) { return anvil::default_generator(static_cast<c10::DeviceIndex>(device)); });
  def(m, "stream_priority", [](int device, int64_t id) {
    const c10::Device owner(anvil::kAnvil, static_cast<c10::DeviceIndex>(device));
    return anvil::stream_priority(c10::Stream(c10::Stream::UNSAFE, owner, id));
  });
  def(m, "sleep", &sleep_on_device);
  def(m, "event_elapsed_time", &event_elapsed_time);
  def(m, "tag_stats", &tag_stats);
  def(m, "push_memory_tag",
      [](const std::string& tag) { anvil::check(anvilMemPushTag(tag.c_str())); });
  def(m, "pop_memory_tag", [] { anvil::check(anvilMemPopTag()); });
  m.def("suspend_memory", &suspend_memory, py::call_guard<py::gil_scoped_release>());
  m.def("resume_memory", &resume_memory, py::call_guard<py::gil_scoped_release>());
  anvil::bindings::add_distributed(m);
  anvil::bindings::add_graphs(m);
  anvil::bindings::add_sanitizer(m);
  anvil::bindings::add_trace(m);
  anvil::bindings::add_triton(m);
  def(m, "host_alias", &host_alias);
  def(m, "device_alias", &device_alias);
  def(m, "active_isa", &active_isa);
  def(m, "supported_isas", &supported_isas);
}
