// SPDX-License-Identifier: Apache-2.0
// How a failure gets its words: every function that fails goes through Fail().
#pragma once

#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "anvil/runtime.h"

namespace anvil {

// Makes `message` the calling thread's last error and returns `code`. A very long message is cut.
anvilError_t Fail(anvilError_t code, std::string_view message) noexcept;

// How often the calling thread has failed: tells whether a callee has left words of its own.
unsigned long FailureCount() noexcept;

// A value, or the words that say why there is none.
template <typename T>
struct Result {
  T value{};
  std::string error;

  bool ok() const { return error.empty(); }
  static Result Error(std::string words) { return Result{T{}, std::move(words)}; }
};

// Runs the body of an entry point: no exception crosses the C boundary.
template <typename Body>
anvilError_t Guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Fail(ANVIL_ERROR_OUT_OF_MEMORY,
                "The host refused memory for the runtime's own records; free memory on the host.");
  } catch (const std::exception& error) {
    return Fail(ANVIL_ERROR_SYSTEM, error.what());
  }
}

}  // namespace anvil
