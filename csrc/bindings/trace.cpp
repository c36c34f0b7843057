// SPDX-License-Identifier: Apache-2.0
// The trace's Python side: see vllm_anvil/device/trace.py.
#include <algorithm>
#include <vector>

#include "bindings.h"
#include "core/error.h"

namespace py = pybind11;

namespace anvil::bindings {
namespace {

// ([(name, begin_ns, end_ns, device, stream, depth), ...], number that there was no room for)
py::tuple take() {
  size_t count = 0;
  uint64_t dropped = 0;
  check(anvilTraceTake(nullptr, 0, &count, &dropped));
  std::vector<anvilTraceSpan> spans(count);
  check(anvilTraceTake(spans.data(), spans.size(), &count, &dropped));
  // Another thread may have taken some, or started anew, between the two calls.
  spans.resize(std::min(count, spans.size()));
  py::list result;
  for (const anvilTraceSpan& span : spans) {
    result.append(py::make_tuple(span.name, span.begin_nanoseconds, span.end_nanoseconds,
                                 span.device, span.stream, span.depth));
  }
  return py::make_tuple(result, dropped);
}

}  // namespace

void add_trace(py::module_& m) {
  def(m, "trace_start", [](size_t capacity) { check(anvilTraceStart(capacity)); });
  def(m, "trace_stop", [] { check(anvilTraceStop()); });
  def(m, "trace_take", &take);
}

}  // namespace anvil::bindings
