// SPDX-License-Identifier: Apache-2.0
// The code that Python has loaded, by the address under which Triton hands it on.
#pragma once

#include <cstdint>
#include <memory>

namespace anvil::bindings {

// What keeps the code of the function at `address`; null when none was loaded there.
std::shared_ptr<const void> code_at(uint64_t address);

}  // namespace anvil::bindings
