// SPDX-License-Identifier: Apache-2.0
// The stream sanitizer's Python side: see vllm_anvil/device/sanitizer.py.
#include "bindings.h"
#include "call_site.h"
#include "core/error.h"

namespace py = pybind11;

namespace anvil::bindings {
namespace {

// (reports since the last call, joined by blank lines; number of reports so far)
std::pair<std::string, uint64_t> take_reports() {
  size_t size = 0;
  uint64_t count = 0;
  check(anvilSanitizerTakeReports(nullptr, 0, &size, &count));
  std::string text(size, '\0');
  check(anvilSanitizerTakeReports(text.data(), text.size(), &size, &count));
  text.resize(text.find('\0'));
  return {text, count};
}

}  // namespace

void add_sanitizer(py::module_& m) {
  def(m, "sanitizer_take_reports", &take_reports);
  // `folders`: packages between the user's program and the device, whose frames are passed over.
  def(m, "sanitizer_name_call_sites", [](std::vector<std::string> folders) {
    prepare_call_sites(std::move(folders));
    check(anvilSanitizerSetCallSite(&call_site));
    check(anvilSanitizerSetSignalCallSite(&signal_safe_call_site));
  });
}

}  // namespace anvil::bindings
