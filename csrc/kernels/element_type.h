// SPDX-License-Identifier: Apache-2.0
//
// Types of the elements that kernels read and write. All of them compute in float32.
#pragma once

#include <cstdint>

namespace anvil::kernels {

enum class ElementType : uint8_t { kFloat32, kBf16, kFp16 };

}  // namespace anvil::kernels
