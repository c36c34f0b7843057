// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace anvil::kernels {

// Types that the elements of a KV cache may have in memory: those of element_type.h, float8 (e4m3fn
// and e5m2 of the OCP specification) and int8.
enum class CacheType : uint8_t { kFloat32, kBf16, kFp16, kE4m3, kE5m2, kInt8 };

}  // namespace anvil::kernels
