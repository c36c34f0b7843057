// SPDX-License-Identifier: Apache-2.0
// What the Triton backend needs of the device: loaded code, the launcher, and the few things that
// every launch asks for.
#include <mutex>
#include <span>
#include <unordered_map>

#include "bindings.h"
#include "core/stream.h"
#include "loaded_object.h"
#include "triton_code.h"
#include "triton_launcher.h"

namespace py = pybind11;

namespace anvil::bindings {
namespace {

struct LoadedFunctions {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::weak_ptr<const triton::LoadedObject>> by_address;
};

LoadedFunctions& loaded() {
  static auto* functions = new LoadedFunctions;  // leaked: kernels are dropped until the very end
  return *functions;
}

// One kernel's object, loaded.
class Code {
 public:
  Code(const std::string& name, const std::string& object)
      : object_(std::make_shared<triton::LoadedObject>(std::as_bytes(std::span(object)))),
        address_(reinterpret_cast<uint64_t>(object_->function(name))) {
    LoadedFunctions& functions = loaded();
    const std::lock_guard<std::mutex> lock(functions.mutex);
    functions.by_address[address_] = object_;
  }

  ~Code() {
    LoadedFunctions& functions = loaded();
    const std::lock_guard<std::mutex> lock(functions.mutex);
    functions.by_address.erase(address_);
  }

  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  uint64_t address() const { return address_; }

 private:
  std::shared_ptr<triton::LoadedObject> object_;
  uint64_t address_;
};

// Plain functions of CPython: pybind11 would take longer than the launch itself.
PyObject* launch_device(PyObject* /*module*/, PyObject* /*none*/) {
  HANDLE_TH_ERRORS
  // A forked child has no device, but may still run kernels on CPU tensors.
  return PyLong_FromLong(anvilIsForkedChild() != 0 ? 0 : current_device());
  END_HANDLE_TH_ERRORS
}

PyObject* launch_stream(PyObject* /*module*/, PyObject* device) {
  HANDLE_TH_ERRORS
  const long index = PyLong_AsLong(device);
  if (index == -1 && PyErr_Occurred() != nullptr) return nullptr;
  return PyLong_FromLongLong(current_stream(static_cast<c10::DeviceIndex>(index)).id());
  END_HANDLE_TH_ERRORS
}

PyMethodDef launch_functions[] = {
    {"triton_current_device", &launch_device, METH_NOARGS, "Index of the current device."},
    {"triton_current_stream", &launch_stream, METH_O, "Id of the device's current stream."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

std::shared_ptr<const void> code_at(uint64_t address) {
  LoadedFunctions& functions = loaded();
  const std::lock_guard<std::mutex> lock(functions.mutex);
  const auto found = functions.by_address.find(address);
  return found != functions.by_address.end() ? found->second.lock() : nullptr;
}

void add_triton(py::module_& m) {
  // Code stays while a Code, a launcher that has launched it, or a queued command holds it.
  py::class_<Code>(m, "TritonCode")
      .def(py::init([](const std::string& name, const py::bytes& object) {
             return std::make_unique<Code>(name, static_cast<std::string>(object));
           }),
           py::arg("name"), py::arg("object"))
      .def_property_readonly("address", &Code::address);
  PyObject* launcher = make_triton_launcher_type();
  if (launcher == nullptr) throw py::error_already_set();
  m.attr("TritonLauncher") = py::reinterpret_steal<py::object>(launcher);
  if (PyModule_AddFunctions(m.ptr(), launch_functions) != 0) throw py::error_already_set();
}

}  // namespace anvil::bindings
