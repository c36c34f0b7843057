// SPDX-License-Identifier: Apache-2.0
#include "configuration.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "text_file.h"
#include "units.h"

namespace anvil {
namespace {

constexpr uint64_t kLeastDeviceMemory = 2 * kMiB;  // the allocator's smallest mapping
constexpr int64_t kMostHostCores = 1024;
constexpr int64_t kLongestDelay = 1000000;

std::string Rejected(const char* name, const std::string& value, const std::string& accepted) {
  return std::string(name) + "='" + value + "' cannot be used: expected " + accepted + ".";
}

}  // namespace

std::optional<std::string> ProcessEnvironment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return value;
}

Result<Configuration> ReadConfiguration(const Environment& environment) {
  using Outcome = Result<Configuration>;
  const auto get = [&environment](const char* name) {
    std::optional<std::string> value = environment(name);
    if (value && Trim(*value).empty()) value.reset();
    return value;
  };
  Configuration configuration;

  if (const auto text = get("ANVIL_DEVICES")) {
    const auto count = ParseInteger(*text);
    if (!count || *count < 1 || *count > ANVIL_MAX_DEVICES) {
      return Outcome::Error(Rejected(
          "ANVIL_DEVICES", *text, "a whole number from 1 to " + std::to_string(ANVIL_MAX_DEVICES)));
    }
    configuration.request.device_count = static_cast<int>(*count);
  }

  if (const auto text = get("ANVIL_HOST_CORES")) {
    const auto count = ParseInteger(*text);
    if (!count || *count < 0 || *count > kMostHostCores) {
      return Outcome::Error(Rejected("ANVIL_HOST_CORES", *text,
                                     "a whole number from 0 to " + std::to_string(kMostHostCores)));
    }
    configuration.request.host_cores = static_cast<int>(*count);
  }

  if (const auto text = get("ANVIL_DEVICE_MEMORY")) {
    const auto bytes = ParseBytes(*text);
    if (!bytes || *bytes < kLeastDeviceMemory) {
      return Outcome::Error(Rejected(
          "ANVIL_DEVICE_MEMORY", *text,
          "an amount of at least " + FormatBytes(kLeastDeviceMemory) +
              " for each device, in bytes or with a unit (KiB, MiB, GiB, TiB, or K, M, G, T, all "
              "powers of 1024), such as 8589934592, 8GiB or 1.5G"));
    }
    configuration.request.device_memory = *bytes;
  }

  if (const auto text = get("ANVIL_VISIBLE_DEVICES")) {
    const std::string accepted = "distinct device indices separated by commas, such as 0 or 1,3";
    std::vector<int>& visible = configuration.request.visible;
    // A trailing comma would go unnoticed by Split.
    const std::string list = *text + ",";
    for (const std::string& part : Split(list, ',')) {
      const auto index = ParseInteger(part);
      const bool usable =
          index && *index >= 0 && *index < ANVIL_MAX_DEVICES &&
          std::find(visible.begin(), visible.end(), static_cast<int>(*index)) == visible.end();
      if (!usable) return Outcome::Error(Rejected("ANVIL_VISIBLE_DEVICES", *text, accepted));
      visible.push_back(static_cast<int>(*index));
    }
  }

  const std::pair<const char*, bool*> switches[] = {
      {"ANVIL_SHARE_CORES", &configuration.request.share_cores},
      {"ANVIL_LAUNCH_BLOCKING", &configuration.launch_blocking},
      {"ANVIL_SANITIZE", &configuration.sanitize},
      {"ANVIL_DEBUG_POISON", &configuration.poison}};
  for (const auto& [name, enabled] : switches) {
    const auto text = get(name);
    if (!text) continue;
    const std::string_view value = Trim(*text);
    if (value != "0" && value != "1") return Outcome::Error(Rejected(name, *text, "0 or 1"));
    *enabled = value == "1";
  }

  if (const auto text = get("ANVIL_DEBUG_DELAY")) {
    const auto delay = ParseInteger(*text);
    if (!delay || *delay < 0 || *delay > kLongestDelay) {
      return Outcome::Error(
          Rejected("ANVIL_DEBUG_DELAY", *text,
                   "a whole number of microseconds from 0 to " + std::to_string(kLongestDelay)));
    }
    configuration.longest_delay = static_cast<uint32_t>(*delay);
  }
  return {std::move(configuration), ""};
}

}  // namespace anvil
