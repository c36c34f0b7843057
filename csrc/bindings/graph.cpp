// SPDX-License-Identifier: Apache-2.0
// _C.Graph: see vllm_anvil/device/graphs.py.
#include "core/graph.h"

#include "bindings.h"
#include "core/stream.h"

namespace py = pybind11;

namespace anvil::bindings {
namespace {

py::list nodes(const Graph& graph) {
  py::list result;
  for (const Graph::Node& node : graph.nodes()) {
    py::dict entry;
    entry["name"] = node.name;
    entry["stream"] = node.stream;
    entry["runs"] = node.runs;
    entry["last_us"] = node.last_us;
    entry["mean_us"] = node.mean_us;
    result.append(entry);
  }
  return result;
}

template <auto Method, typename... Args>
auto method() {
  return torch::wrap_pybind_function_no_gil(
      [](Graph& graph, Args... args) { return (graph.*Method)(args...); });
}

}  // namespace

void add_graphs(py::module_& m) {
  def(m, "register_graphs", &register_graphs);
  def(m, "new_graph_pool_id", &new_graph_pool_id);
  def(m, "is_stream_capturing", [](int device) {
    return anvilStreamIsCapturing(current_stream_handle(static_cast<c10::DeviceIndex>(device))) !=
           0;
  });
  py::class_<Graph, std::shared_ptr<Graph>>(m, "Graph")
      .def(py::init([] { return std::make_shared<Graph>(); }))
      .def("capture_begin",
           torch::wrap_pybind_function_no_gil([](Graph& graph, at::MempoolId_t pool) {
             graph.capture_begin(pool, at::GraphCaptureMode::Default);
           }))
      .def("capture_end", method<&Graph::capture_end>())
      .def("replay", method<&Graph::replay>())
      .def("reset", method<&Graph::reset>())
      .def("pool", method<&Graph::pool>())
      .def("pool_bytes", method<&Graph::pool_bytes>())
      .def("set_timing", method<&Graph::set_timing, bool>())
      .def("debug_dump", method<&Graph::debug_dump, const std::string&>())
      .def("nodes", torch::wrap_pybind_function(&nodes));
}

}  // namespace anvil::bindings
