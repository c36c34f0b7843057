// SPDX-License-Identifier: Apache-2.0
// _C.ProcessGroup: see vllm_anvil/device/distributed.py.
#include <pybind11/chrono.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "bindings.h"
#include "distributed/process_group.h"

namespace py = pybind11;

namespace anvil::bindings {

void add_distributed(py::module_& m) {
  py::class_<ProcessGroup, c10::intrusive_ptr<ProcessGroup>, c10d::Backend>(m, "ProcessGroup")
      .def(py::init(torch::wrap_pybind_function_no_gil(
          [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
             std::chrono::milliseconds timeout, const std::string& name,
             const std::string& refusal) {
            return c10::make_intrusive<ProcessGroup>(*store, rank, size, timeout, name, refusal);
          })))
      .def_property_readonly("fallback_reason", &ProcessGroup::fallback_reason)
      .def("use_gloo", torch::wrap_pybind_function_no_gil(
                           [](ProcessGroup& group, const c10::intrusive_ptr<c10d::Backend>& gloo) {
                             group.use_gloo(gloo);
                           }))
      .def("start_coalescing",
           torch::wrap_pybind_function_no_gil([](ProcessGroup& group) { group.startCoalescing(); }))
      .def("end_coalescing", torch::wrap_pybind_function_no_gil(
                                 [](ProcessGroup& group) { return group.endCoalescing(); }))
      .def("all_reduce_into",
           torch::wrap_pybind_function_no_gil(
               [](ProcessGroup& group, const at::Tensor& output, const at::Tensor& input) {
                 return group.all_reduce_into(output, input);
               }));
}

}  // namespace anvil::bindings
