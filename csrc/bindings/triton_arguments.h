// SPDX-License-Identifier: Apache-2.0
// A kernel's parameters as Python passes their arguments.
#pragma once

#include <Python.h>

#include <memory>
#include <string>
#include <vector>

#include "triton/kernel_call.h"

namespace anvil::bindings {

enum class Kind { kSkipped, kTuple, kPointer, kBool, kInt, kF16, kBf16, kF32, kF64 };

// One parameter of the kernel, as its arguments come: nested as Triton's signature is.
struct Parameter {
  Kind kind = Kind::kSkipped;
  unsigned access = 0;  // of a pointer: ANVIL_ACCESS_*
  int bits = 0;         // of a kInt
  std::string name;
  std::vector<Parameter> fields;  // of a kTuple
};

struct DropReference {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
using Reference = std::unique_ptr<PyObject, DropReference>;

// A Python error is set.
struct PythonError {};

// The parameters that a tuple describes, each as None (its argument is not passed on), (name,
// parameters) for a tuple, or (name, type, reads, writes).
std::vector<Parameter> parameters_of(PyObject* tuple);

// Adds what the kernel gets for a Python argument; `kernel` is its name, for errors.
void add_argument(KernelCall& call, const Parameter& parameter, PyObject* object,
                  const char* kernel);

}  // namespace anvil::bindings
