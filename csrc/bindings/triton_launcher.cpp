// SPDX-License-Identifier: Apache-2.0
// _C.TritonLauncher: what Triton calls to launch a kernel, as a CPython type of its own, since the
// call stands in every launch's way.
#include "triton_launcher.h"

#include <structmember.h>
#include <torch/csrc/Exceptions.h>

#include <limits>
#include <memory>
#include <string_view>
#include <vector>

#include "triton_arguments.h"
#include "triton_code.h"

namespace anvil::bindings {
namespace {

struct Launcher {
  PyObject_HEAD vectorcallfunc vectorcall;
  std::vector<Parameter>* parameters;
  std::shared_ptr<triton::Kernel>* kernel;  // its entry is that of `function`
  uint64_t function;                        // what the kernel was last launched as
};

// Positions of what precedes the kernel's own arguments.
enum { kGridX, kGridY, kGridZ, kStream, kFunction, kPacked, kMetadata, kEnter, kExit, kOwn };

class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

int32_t extent(const Launcher& self, PyObject* object, char axis) {
  const Reference index(PyNumber_Index(object));
  int overflow = 0;
  const int64_t value = index ? PyLong_AsLongLongAndOverflow(index.get(), &overflow) : 0;
  if (index == nullptr) throw PythonError();
  if (overflow != 0 || value < 0 || value > std::numeric_limits<int32_t>::max()) {
    PyErr_Format(PyExc_ValueError, "Triton kernel %s: extent %c of the grid is %R",
                 (*self.kernel)->name.c_str(), axis, index.get());
    throw PythonError();
  }
  return static_cast<int32_t>(value);
}

triton::Grid grid_of(const Launcher& self, PyObject* const* args) {
  const triton::Grid grid = {extent(self, args[kGridX], 'x'), extent(self, args[kGridY], 'y'),
                             extent(self, args[kGridZ], 'z')};
  if (static_cast<__int128>(grid.x) * grid.y * grid.z > triton::kMaxPrograms) {
    PyErr_Format(PyExc_ValueError,
                 "Triton kernel %s: a grid of %d x %d x %d is more than %lld programs",
                 (*self.kernel)->name.c_str(), grid.x, grid.y, grid.z,
                 static_cast<long long>(triton::kMaxPrograms));
    throw PythonError();
  }
  return grid;
}

// The kernel under the function that Triton loaded. Kernels that are queued keep their own.
const std::shared_ptr<triton::Kernel>& kernel_of(Launcher& self, PyObject* function) {
  const uint64_t address = PyLong_AsUnsignedLongLong(function);
  if (PyErr_Occurred() != nullptr) throw PythonError();
  if (C10_UNLIKELY(address != self.function)) {
    auto kernel = std::make_shared<triton::Kernel>();
    kernel->name = (*self.kernel)->name;
    kernel->scratch_bytes = (*self.kernel)->scratch_bytes;
    kernel->code = code_at(address);
    kernel->entry = reinterpret_cast<triton::KernelEntry>(address);
    if (kernel->code == nullptr) {
      PyErr_Format(PyExc_ValueError, "Triton kernel %s: %R is no loaded function",
                   kernel->name.c_str(), function);
      throw PythonError();
    }
    *self.kernel = std::move(kernel);
    self.function = address;
  }
  return *self.kernel;
}

// Triton's chain of hooks, with none in it: calling it would take as long as the launch.
bool is_empty_chain(PyObject* hook) {
  if (std::string_view(Py_TYPE(hook)->tp_name) != "HookChain") return false;
  static PyObject* const name = PyUnicode_InternFromString("calls");
  const Reference calls(PyObject_GetAttr(hook, name));
  if (calls == nullptr) PyErr_Clear();
  return calls != nullptr && PyList_CheckExact(calls.get()) && PyList_GET_SIZE(calls.get()) == 0;
}

void run_hook(PyObject* hook, PyObject* metadata) {
  if (hook == Py_None || is_empty_chain(hook)) return;
  const Reference result(PyObject_CallOneArg(hook, metadata));
  if (result == nullptr) throw PythonError();
}

PyObject* call(PyObject* object, PyObject* const* args, size_t flagged_count, PyObject* keywords) {
  HANDLE_TH_ERRORS
  auto& self = *reinterpret_cast<Launcher*>(object);
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flagged_count));
  const std::vector<Parameter>& parameters = *self.parameters;
  if (count != kOwn + parameters.size() ||
      (keywords != nullptr && PyTuple_GET_SIZE(keywords) > 0)) {
    PyErr_Format(PyExc_TypeError,
                 "Triton kernel %s: the launcher takes %zu positional arguments, got %zu",
                 (*self.kernel)->name.c_str(), kOwn + parameters.size(), count);
    return nullptr;
  }
  try {
    const triton::Grid grid = grid_of(self, args);
    if (grid.programs() == 0) Py_RETURN_NONE;
    KernelCall call(kernel_of(self, args[kFunction]));
    const char* const name = (*self.kernel)->name.c_str();
    for (size_t i = 0; i < parameters.size(); ++i) {
      add_argument(call, parameters[i], args[kOwn + i], name);
    }
    run_hook(args[kEnter], args[kMetadata]);
    {
      const WithoutGil unlocked;
      call.launch(grid);
    }
    run_hook(args[kExit], args[kMetadata]);
  } catch (const PythonError&) {
    return nullptr;
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  HANDLE_TH_ERRORS
  static const char* names[] = {"name", "scratch_bytes", "parameters", nullptr};
  const char* name = nullptr;
  Py_ssize_t scratch_bytes = 0;
  PyObject* parameters = nullptr;
  if (PyArg_ParseTupleAndKeywords(args, keywords, "snO!", const_cast<char**>(names), &name,
                                  &scratch_bytes, &PyTuple_Type, &parameters) == 0) {
    return nullptr;
  }
  auto kernel = std::make_shared<triton::Kernel>();
  kernel->name = name;
  kernel->scratch_bytes = static_cast<size_t>(scratch_bytes);
  try {
    auto own = std::make_unique<std::vector<Parameter>>(parameters_of(parameters));
    Reference object(type->tp_alloc(type, 0));
    if (object == nullptr) return nullptr;
    auto& self = *reinterpret_cast<Launcher*>(object.get());
    self.vectorcall = &call;
    self.parameters = own.release();
    self.kernel = new std::shared_ptr<triton::Kernel>(std::move(kernel));
    return object.release();
  } catch (const PythonError&) {
    return nullptr;
  }
  END_HANDLE_TH_ERRORS
}

void destroy(PyObject* object) {
  auto& self = *reinterpret_cast<Launcher*>(object);
  delete self.parameters;
  delete self.kernel;
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Launcher, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(&create)},
    {Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
    {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
    {Py_tp_members, members},
    {Py_tp_doc, const_cast<char*>(
                    "TritonLauncher(name, scratch_bytes, parameters)\n\n"
                    "Launches one kernel, called as Triton calls launchers. `parameters` holds for "
                    "each argument None (not passed on), (name, parameters) for a tuple, or (name, "
                    "type, reads, writes).")},
    {0, nullptr},
};

PyType_Spec spec = {
    .name = "vllm_anvil._C.TritonLauncher",
    .basicsize = sizeof(Launcher),
    .itemsize = 0,
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = slots,
};

}  // namespace

PyObject* make_triton_launcher_type() { return PyType_FromSpec(&spec); }

}  // namespace anvil::bindings
