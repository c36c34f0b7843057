// SPDX-License-Identifier: Apache-2.0
#include "units.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace anvil {

std::string FormatBytes(uint64_t bytes) {
  struct Unit {
    uint64_t size;
    const char* name;
  };
  static constexpr std::array<Unit, 4> kUnits = {
      {{kTiB, "TiB"}, {kGiB, "GiB"}, {kMiB, "MiB"}, {kKiB, "KiB"}}};
  for (const Unit& unit : kUnits) {
    if (bytes < unit.size) continue;
    char text[32];
    const int decimals = bytes % unit.size == 0 ? 0 : 2;
    std::snprintf(text, sizeof(text), "%.*f %s", decimals,
                  static_cast<double>(bytes) / static_cast<double>(unit.size), unit.name);
    return text;
  }
  return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
}

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::optional<int64_t> ParseInteger(std::string_view text) {
  text = Trim(text);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<uint64_t> ParseBytes(std::string_view text) {
  text = Trim(text);
  const size_t digits = text.find_first_not_of("0123456789.");
  const std::string_view number = text.substr(0, digits);
  std::string unit;
  if (digits != std::string_view::npos) {
    for (char c : Trim(text.substr(digits))) {
      unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  uint64_t scale = 1;
  if (unit == "k" || unit == "kib") {
    scale = kKiB;
  } else if (unit == "m" || unit == "mib") {
    scale = kMiB;
  } else if (unit == "g" || unit == "gib") {
    scale = kGiB;
  } else if (unit == "t" || unit == "tib") {
    scale = kTiB;
  } else if (!unit.empty()) {
    return std::nullopt;
  }
  // Plain bytes are read as an integer: a double would round amounts above 2^53.
  if (scale == 1) {
    const std::optional<int64_t> bytes = ParseInteger(number);
    if (!bytes) return std::nullopt;
    return static_cast<uint64_t>(*bytes);
  }
  double amount = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), amount,
                                            std::chars_format::fixed);
  if (error != std::errc() || end != number.data() + number.size()) return std::nullopt;
  const double bytes = amount * static_cast<double>(scale);
  if (!(bytes < 0x1p63)) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

}  // namespace anvil
