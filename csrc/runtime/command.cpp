// SPDX-License-Identifier: Apache-2.0
#include "command.h"

#include <exception>
#include <string>

#include "error.h"
#include "trace.h"

namespace anvil {
namespace {

anvilError_t FailCommand(anvilError_t status, const char* name, const std::string& words) {
  return Fail(status, "Command '" + std::string(name != nullptr ? name : "unnamed") +
                          "' failed: " + (words.empty() ? anvilErrorName(status) : words));
}

}  // namespace

thread_local constinit anvilStream_t running_stream = nullptr;

anvilError_t Run(const char* name, anvilError_t (*run)(void*), void* arg) {
  const TracedRun traced(name);
  const unsigned long failures = FailureCount();
  try {
    const anvilError_t status = run(arg);
    if (status == ANVIL_SUCCESS) return status;
    const bool has_words = FailureCount() != failures;
    return FailCommand(status, name, has_words ? anvilGetLastErrorMessage() : "");
  } catch (const std::exception& error) {
    return FailCommand(ANVIL_ERROR_COMMAND, name, error.what());
  } catch (...) {
    return FailCommand(ANVIL_ERROR_COMMAND, name,
                       "it threw an exception that is no std::exception");
  }
}

}  // namespace anvil
