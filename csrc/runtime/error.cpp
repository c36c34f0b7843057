// SPDX-License-Identifier: Apache-2.0
#include "error.h"

#include <algorithm>
#include <cstring>

namespace anvil {
namespace {

// A plain array: it has no destructor, so that a failure during static destruction can still be
// told, and setting it never allocates, so that running out of memory can be told too.
thread_local char last_message[4096] = "";
thread_local unsigned long failure_count = 0;

}  // namespace

anvilError_t Fail(anvilError_t code, std::string_view message) noexcept {
  const size_t length = std::min(message.size(), sizeof(last_message) - 1);
  std::memmove(last_message, message.data(), length);
  last_message[length] = '\0';
  ++failure_count;
  return code;
}

unsigned long FailureCount() noexcept { return failure_count; }

}  // namespace anvil

const char* anvilGetLastErrorMessage(void) { return anvil::last_message; }

anvilError_t anvilReportError(anvilError_t error, const char* message) {
  return anvil::Fail(error, message == nullptr ? "" : message);
}

const char* anvilErrorName(anvilError_t error) {
  switch (error) {
    case ANVIL_SUCCESS:
      return "ANVIL_SUCCESS";
    case ANVIL_ERROR_INVALID_VALUE:
      return "ANVIL_ERROR_INVALID_VALUE";
    case ANVIL_ERROR_INVALID_DEVICE:
      return "ANVIL_ERROR_INVALID_DEVICE";
    case ANVIL_ERROR_CONFIGURATION:
      return "ANVIL_ERROR_CONFIGURATION";
    case ANVIL_ERROR_OUT_OF_MEMORY:
      return "ANVIL_ERROR_OUT_OF_MEMORY";
    case ANVIL_ERROR_NOT_READY:
      return "ANVIL_ERROR_NOT_READY";
    case ANVIL_ERROR_FORKED:
      return "ANVIL_ERROR_FORKED";
    case ANVIL_ERROR_COMMAND:
      return "ANVIL_ERROR_COMMAND";
    case ANVIL_ERROR_SYSTEM:
      return "ANVIL_ERROR_SYSTEM";
    case ANVIL_ERROR_CAPTURE:
      return "ANVIL_ERROR_CAPTURE";
  }
  return "ANVIL_ERROR_UNKNOWN";
}
