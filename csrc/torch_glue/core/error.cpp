// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"

#include <string_view>

namespace anvil {

// A command's failure says in its words what kind it was (command.cpp), so that a wait raises what
// the call itself would have raised.
void throw_error(anvilError_t error) {
  const std::string message = anvilGetLastErrorMessage();
  TORCH_CHECK_WITH(OutOfMemoryError, error != ANVIL_ERROR_OUT_OF_MEMORY, message);
  if (error == ANVIL_ERROR_COMMAND) {
    const auto says = [&message](std::string_view kind) {
      return message.find(std::string("failed: ") + std::string(kind)) != std::string::npos;
    };
    const std::string words = message +
                              "\nThe command was queued earlier; ANVIL_LAUNCH_BLOCKING=1 raises "
                              "this where it was called.";
    TORCH_CHECK_INDEX(!says("IndexError: "), words);
    TORCH_CHECK_VALUE(!says("ValueError: "), words);
    TORCH_CHECK_TYPE(!says("TypeError: "), words);
    TORCH_CHECK_NOT_IMPLEMENTED(!says("NotImplementedError: "), words);
    TORCH_CHECK(false, words);
  }
  TORCH_CHECK(false, message, " [", anvilErrorName(error), "]");
}

}  // namespace anvil
