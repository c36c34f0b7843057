// SPDX-License-Identifier: Apache-2.0
// The parts of the Python module _C.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

namespace anvil::bindings {

// Exceptions of c10 become the Python exceptions that torch uses, without a C++ backtrace.
template <typename Function>
void def(pybind11::module_& m, const char* name, Function function) {
  m.def(name, torch::wrap_pybind_function(function));
}

void add_distributed(pybind11::module_& m);
void add_graphs(pybind11::module_& m);
void add_sanitizer(pybind11::module_& m);
void add_trace(pybind11::module_& m);
void add_triton(pybind11::module_& m);

}  // namespace anvil::bindings
