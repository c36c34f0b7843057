// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

namespace anvil::bindings {

// The type _C.TritonLauncher; null with a Python error set.
PyObject* make_triton_launcher_type();

}  // namespace anvil::bindings
