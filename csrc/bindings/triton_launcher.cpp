// SPDX-License-Identifier: Apache-2.0
// _C.TritonLauncher: what Triton calls to launch a kernel, as a CPython type of its own, since the
// call stands in every launch's way.
#include "triton_launcher.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "triton/kernel_call.h"
#include "triton_code.h"

namespace anvil::bindings {
namespace {

enum class Kind { kSkipped, kTuple, kPointer, kBool, kInt, kF16, kBf16, kF32, kF64 };

// One parameter of the kernel, as its arguments come: nested as Triton's signature is.
struct Parameter {
  Kind kind = Kind::kSkipped;
  unsigned access = 0;  // of a pointer: ANVIL_ACCESS_*
  int bits = 0;         // of a kInt
  std::string name;
  std::vector<Parameter> fields;  // of a kTuple
};

struct Launcher {
  PyObject_HEAD vectorcallfunc vectorcall;
  std::vector<Parameter>* parameters;
  std::shared_ptr<triton::Kernel>* kernel;  // its entry is that of `function`
  uint64_t function;                        // what the kernel was last launched as
};

// Positions of what precedes the kernel's own arguments.
enum { kGridX, kGridY, kGridZ, kStream, kFunction, kPacked, kMetadata, kEnter, kExit, kOwn };

struct DropReference {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
using Reference = std::unique_ptr<PyObject, DropReference>;

// A Python error is set.
struct PythonError {};

class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

[[noreturn]] void wrong_type(const Launcher& self, const Parameter& parameter, const char* wanted,
                             PyObject* got) {
  PyErr_Clear();
  PyErr_Format(PyExc_TypeError, "Triton kernel %s: argument %s takes %s, not %s",
               (*self.kernel)->name.c_str(), parameter.name.c_str(), wanted, Py_TYPE(got)->tp_name);
  throw PythonError();
}

// The integer's lowest 64 bits; it may be signed or unsigned in `bits`.
uint64_t integer(const Launcher& self, const Parameter& parameter, PyObject* object, int bits) {
  Reference converted;
  if (C10_UNLIKELY(!PyLong_Check(object))) {
    if (PyIndex_Check(object)) converted.reset(PyNumber_Index(object));
    if (converted == nullptr) wrong_type(self, parameter, "an integer", object);
    object = converted.get();
  }
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow > 0 && bits == 64) {
    const uint64_t large = PyLong_AsUnsignedLongLong(object);
    if (PyErr_Occurred() == nullptr) return large;
    PyErr_Clear();
  } else if (overflow == 0) {
    const int64_t limit = bits == 64 ? 0 : INT64_C(1) << bits;
    if (bits == 64 || (value >= -(limit / 2) && value < limit)) return static_cast<uint64_t>(value);
  }
  PyErr_Format(PyExc_OverflowError,
               "Triton kernel %s: argument %s is %R, which %d bits do not hold",
               (*self.kernel)->name.c_str(), parameter.name.c_str(), object, bits);
  throw PythonError();
}

double floating(const Launcher& self, const Parameter& parameter, PyObject* object) {
  if (C10_LIKELY(PyFloat_CheckExact(object))) return PyFloat_AS_DOUBLE(object);
  const double value = PyFloat_AsDouble(object);
  if (value == -1.0 && PyErr_Occurred() != nullptr) {
    wrong_type(self, parameter, "a number", object);
  }
  return value;
}

void add_pointer(const Launcher& self, KernelCall& call, const Parameter& parameter,
                 PyObject* object) {
  const char* name = parameter.name.c_str();
  if (C10_LIKELY(THPVariable_Check(object))) {
    return call.add_tensor(THPVariable_Unpack(object), name, parameter.access);
  }
  if (object == Py_None) return call.add_value<uint64_t>(0);
  if (PyLong_Check(object)) return call.add_address(integer(self, parameter, object, 64), name);
  // triton.reinterpret()'s result and its like.
  const Reference base(PyObject_GetAttrString(object, "base"));
  if (base == nullptr) PyErr_Clear();
  if (base != nullptr && THPVariable_Check(base.get())) {
    return call.add_owned_tensor(THPVariable_Unpack(base.get()), name, parameter.access);
  }
  const Reference method(PyObject_GetAttrString(object, "data_ptr"));
  if (method == nullptr) wrong_type(self, parameter, "a tensor or an address", object);
  const Reference address(PyObject_CallNoArgs(method.get()));
  if (address == nullptr) throw PythonError();
  call.add_address(integer(self, parameter, address.get(), 64), name);
}

void add_argument(const Launcher& self, KernelCall& call, const Parameter& parameter,
                  PyObject* object);

void add_fields(const Launcher& self, KernelCall& call, const Parameter& parameter,
                PyObject* object) {
  const Reference items(PySequence_Fast(object, ""));
  const auto count = static_cast<Py_ssize_t>(parameter.fields.size());
  if (items == nullptr || PySequence_Fast_GET_SIZE(items.get()) != count) {
    const std::string wanted = "a tuple of " + std::to_string(count);
    wrong_type(self, parameter, wanted.c_str(), object);
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    add_argument(self, call, parameter.fields[static_cast<size_t>(i)],
                 PySequence_Fast_GET_ITEM(items.get(), i));
  }
}

void add_argument(const Launcher& self, KernelCall& call, const Parameter& parameter,
                  PyObject* object) {
  switch (parameter.kind) {
    case Kind::kSkipped:
      return;
    case Kind::kTuple:
      return add_fields(self, call, parameter, object);
    case Kind::kPointer:
      return add_pointer(self, call, parameter, object);
    case Kind::kBool: {
      const int truth = PyObject_IsTrue(object);
      if (truth < 0) throw PythonError();
      return call.add_value<uint8_t>(truth != 0);
    }
    case Kind::kInt:
      // Little-endian: the value's own width is at the slot's start.
      return call.add_value(integer(self, parameter, object, parameter.bits));
    case Kind::kF16:
      return call.add_value(c10::Half(static_cast<float>(floating(self, parameter, object))));
    case Kind::kBf16:
      return call.add_value(c10::BFloat16(static_cast<float>(floating(self, parameter, object))));
    case Kind::kF32:
      return call.add_value(static_cast<float>(floating(self, parameter, object)));
    case Kind::kF64:
      return call.add_value(floating(self, parameter, object));
  }
}

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
    for (size_t i = 0; i < parameters.size(); ++i) {
      add_argument(self, call, parameters[i], args[kOwn + i]);
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

Kind kind_of(std::string_view type) {
  if (type == "ptr") return Kind::kPointer;
  if (type == "i1") return Kind::kBool;
  if (type == "f16") return Kind::kF16;
  if (type == "bf16") return Kind::kBf16;
  if (type == "f32") return Kind::kF32;
  if (type == "f64") return Kind::kF64;
  if (type == "i8" || type == "i16" || type == "i32" || type == "i64") return Kind::kInt;
  PyErr_Format(PyExc_ValueError, "no kernel argument is of type %s", std::string(type).c_str());
  throw PythonError();
}

std::vector<Parameter> parameters_of(PyObject* tuple);

// None, (name, parameters) for a tuple, or (name, type, reads, writes).
Parameter parameter_of(PyObject* object) {
  Parameter parameter;
  if (object == Py_None) return parameter;
  const char* name = nullptr;
  const char* type = nullptr;
  PyObject* fields = nullptr;
  int reads = 0, writes = 0;
  if (!PyTuple_Check(object)) {
    PyErr_SetString(PyExc_TypeError, "a parameter is None or a tuple");
    throw PythonError();
  }
  if (PyTuple_GET_SIZE(object) == 2) {
    if (PyArg_ParseTuple(object, "sO!", &name, &PyTuple_Type, &fields) == 0) throw PythonError();
    parameter.kind = Kind::kTuple;
    parameter.name = name;
    parameter.fields = parameters_of(fields);
    return parameter;
  }
  if (PyArg_ParseTuple(object, "sspp", &name, &type, &reads, &writes) == 0) throw PythonError();
  parameter.kind = kind_of(type);
  parameter.name = name;
  parameter.access = (reads != 0 ? ANVIL_ACCESS_READ : 0) | (writes != 0 ? ANVIL_ACCESS_WRITE : 0);
  if (parameter.kind == Kind::kInt) parameter.bits = std::stoi(type + 1);
  return parameter;
}

std::vector<Parameter> parameters_of(PyObject* tuple) {
  std::vector<Parameter> parameters;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    parameters.push_back(parameter_of(PyTuple_GET_ITEM(tuple, i)));
  }
  return parameters;
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
