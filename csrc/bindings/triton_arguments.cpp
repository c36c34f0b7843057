// SPDX-License-Identifier: Apache-2.0
#include "triton_arguments.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <torch/csrc/autograd/python_variable.h>

#include <string_view>

namespace anvil::bindings {
namespace {

[[noreturn]] void wrong_type(const Parameter& parameter, const char* wanted, PyObject* got,
                             const char* kernel) {
  PyErr_Clear();
  PyErr_Format(PyExc_TypeError, "Triton kernel %s: argument %s takes %s, not %s", kernel,
               parameter.name.c_str(), wanted, Py_TYPE(got)->tp_name);
  throw PythonError();
}

// The integer's lowest 64 bits; it may be signed or unsigned in `bits`.
uint64_t integer(const Parameter& parameter, PyObject* object, int bits, const char* kernel) {
  Reference converted;
  if (C10_UNLIKELY(!PyLong_Check(object))) {
    if (PyIndex_Check(object)) converted.reset(PyNumber_Index(object));
    if (converted == nullptr) wrong_type(parameter, "an integer", object, kernel);
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
               "Triton kernel %s: argument %s is %R, which %d bits do not hold", kernel,
               parameter.name.c_str(), object, bits);
  throw PythonError();
}

double floating(const Parameter& parameter, PyObject* object, const char* kernel) {
  if (C10_LIKELY(PyFloat_CheckExact(object))) return PyFloat_AS_DOUBLE(object);
  const double value = PyFloat_AsDouble(object);
  if (value == -1.0 && PyErr_Occurred() != nullptr) {
    wrong_type(parameter, "a number", object, kernel);
  }
  return value;
}

void add_pointer(KernelCall& call, const Parameter& parameter, PyObject* object,
                 const char* kernel) {
  const char* name = parameter.name.c_str();
  if (C10_LIKELY(THPVariable_Check(object))) {
    return call.add_tensor(THPVariable_Unpack(object), name, parameter.access);
  }
  if (object == Py_None) return call.add_value<uint64_t>(0);
  if (PyLong_Check(object)) return call.add_address(integer(parameter, object, 64, kernel), name);
  // triton.reinterpret()'s result and its like.
  const Reference base(PyObject_GetAttrString(object, "base"));
  if (base == nullptr) PyErr_Clear();
  if (base != nullptr && THPVariable_Check(base.get())) {
    return call.add_owned_tensor(THPVariable_Unpack(base.get()), name, parameter.access);
  }
  const Reference method(PyObject_GetAttrString(object, "data_ptr"));
  if (method == nullptr) wrong_type(parameter, "a tensor or an address", object, kernel);
  const Reference address(PyObject_CallNoArgs(method.get()));
  if (address == nullptr) throw PythonError();
  call.add_address(integer(parameter, address.get(), 64, kernel), name);
}

void add_fields(KernelCall& call, const Parameter& parameter, PyObject* object,
                const char* kernel) {
  const Reference items(PySequence_Fast(object, ""));
  const auto count = static_cast<Py_ssize_t>(parameter.fields.size());
  if (items == nullptr || PySequence_Fast_GET_SIZE(items.get()) != count) {
    const std::string wanted = "a tuple of " + std::to_string(count);
    wrong_type(parameter, wanted.c_str(), object, kernel);
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    add_argument(call, parameter.fields[static_cast<size_t>(i)],
                 PySequence_Fast_GET_ITEM(items.get(), i), kernel);
  }
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

}  // namespace

void add_argument(KernelCall& call, const Parameter& parameter, PyObject* object,
                  const char* kernel) {
  switch (parameter.kind) {
    case Kind::kSkipped:
      return;
    case Kind::kTuple:
      return add_fields(call, parameter, object, kernel);
    case Kind::kPointer:
      return add_pointer(call, parameter, object, kernel);
    case Kind::kBool: {
      const int truth = PyObject_IsTrue(object);
      if (truth < 0) throw PythonError();
      return call.add_value<uint8_t>(truth != 0);
    }
    case Kind::kInt:
      // Little-endian: the value's own width is at the slot's start.
      return call.add_value(integer(parameter, object, parameter.bits, kernel));
    case Kind::kF16:
      return call.add_value(c10::Half(static_cast<float>(floating(parameter, object, kernel))));
    case Kind::kBf16:
      return call.add_value(c10::BFloat16(static_cast<float>(floating(parameter, object, kernel))));
    case Kind::kF32:
      return call.add_value(static_cast<float>(floating(parameter, object, kernel)));
    case Kind::kF64:
      return call.add_value(floating(parameter, object, kernel));
  }
}

std::vector<Parameter> parameters_of(PyObject* tuple) {
  std::vector<Parameter> parameters;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    parameters.push_back(parameter_of(PyTuple_GET_ITEM(tuple, i)));
  }
  return parameters;
}

}  // namespace anvil::bindings
