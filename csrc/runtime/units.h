// SPDX-License-Identifier: Apache-2.0
// Amounts of memory as people write and read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace anvil {

inline constexpr uint64_t kKiB = uint64_t{1} << 10;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;
inline constexpr uint64_t kTiB = uint64_t{1} << 40;

// "1.50 GiB", "512 bytes".
std::string FormatBytes(uint64_t bytes);

// Reads "8589934592", "8GiB", "1.5g": a decimal number with an optional unit K, M, G, T, KiB, MiB,
// GiB or TiB in any case (all powers of 1024). Nothing for anything else, and for negative amounts
// and those that do not fit 63 bits.
std::optional<uint64_t> ParseBytes(std::string_view text);

// Reads a whole decimal number that fills all of `text`.
std::optional<int64_t> ParseInteger(std::string_view text);

std::string_view Trim(std::string_view text);

}  // namespace anvil
