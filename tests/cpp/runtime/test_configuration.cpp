// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>

#include "configuration.h"
#include "units.h"

namespace anvil {
namespace {

using Variables = std::map<std::string, std::string>;

Result<Configuration> Read(const Variables& variables) {
  return ReadConfiguration([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

TEST(Configuration, DefaultsToOneDeviceWithItsShareOfMemory) {
  // An empty value is what `VARIABLE= command` leaves: as good as unset.
  for (const Variables& variables : {Variables{}, Variables{{"ANVIL_DEVICES", ""},
                                                            {"ANVIL_DEVICE_MEMORY", " "},
                                                            {"ANVIL_VISIBLE_DEVICES", ""},
                                                            {"ANVIL_SHARE_CORES", ""},
                                                            {"ANVIL_HOST_CORES", ""},
                                                            {"ANVIL_LAUNCH_BLOCKING", ""},
                                                            {"ANVIL_SANITIZE", ""},
                                                            {"ANVIL_DEBUG_POISON", ""},
                                                            {"ANVIL_DEBUG_DELAY", ""}}}) {
    const auto configuration = Read(variables);
    ASSERT_TRUE(configuration.ok()) << configuration.error;
    EXPECT_EQ(configuration.value.request.device_count, 1);
    EXPECT_FALSE(configuration.value.request.device_memory);
    EXPECT_TRUE(configuration.value.request.visible.empty());
    EXPECT_FALSE(configuration.value.request.share_cores);
    EXPECT_EQ(configuration.value.request.host_cores, 0);
    EXPECT_FALSE(configuration.value.launch_blocking);
    EXPECT_FALSE(configuration.value.sanitize);
    EXPECT_FALSE(configuration.value.poison);
    EXPECT_EQ(configuration.value.longest_delay, 0u);
  }
}

TEST(Configuration, ReadsEveryVariable) {
  const auto configuration = Read({{"ANVIL_DEVICES", "4"},
                                   {"ANVIL_DEVICE_MEMORY", "1.5GiB"},
                                   {"ANVIL_VISIBLE_DEVICES", "3, 1"},
                                   {"ANVIL_SHARE_CORES", "1"},
                                   {"ANVIL_HOST_CORES", "2"},
                                   {"ANVIL_LAUNCH_BLOCKING", "1"},
                                   {"ANVIL_SANITIZE", "1"},
                                   {"ANVIL_DEBUG_POISON", "1"},
                                   {"ANVIL_DEBUG_DELAY", "1000000"}});
  ASSERT_TRUE(configuration.ok()) << configuration.error;
  EXPECT_EQ(configuration.value.request.device_count, 4);
  EXPECT_EQ(configuration.value.request.device_memory, kGiB + kGiB / 2);
  EXPECT_EQ(configuration.value.request.visible, (std::vector<int>{3, 1}));
  EXPECT_TRUE(configuration.value.request.share_cores);
  EXPECT_EQ(configuration.value.request.host_cores, 2);
  EXPECT_TRUE(configuration.value.launch_blocking);
  EXPECT_TRUE(configuration.value.sanitize);
  EXPECT_TRUE(configuration.value.poison);
  EXPECT_EQ(configuration.value.longest_delay, 1000000u);
}

struct Rejected {
  const char* variable;
  const char* value;
  const char* accepted;  // part of the message
};

void PrintTo(const Rejected& rejected, std::ostream* stream) {
  *stream << rejected.variable << "='" << rejected.value << "'";
}

class RejectedValue : public testing::TestWithParam<Rejected> {};

TEST_P(RejectedValue, IsNamedWithWhatIsAccepted) {
  const Rejected& rejected = GetParam();
  const auto configuration = Read({{rejected.variable, rejected.value}});
  ASSERT_FALSE(configuration.ok());
  for (const std::string& part : {std::string(rejected.variable) + "='" + rejected.value + "'",
                                  std::string("expected"), std::string(rejected.accepted)}) {
    EXPECT_NE(configuration.error.find(part), std::string::npos)
        << configuration.error << "\nlacks: " << part;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, RejectedValue,
                         testing::Values(Rejected{"ANVIL_DEVICES", "0", "from 1 to 64"},
                                         Rejected{"ANVIL_DEVICES", "-1", "from 1 to 64"},
                                         Rejected{"ANVIL_DEVICES", "65", "from 1 to 64"},
                                         Rejected{"ANVIL_DEVICES", "two", "from 1 to 64"},
                                         Rejected{"ANVIL_DEVICES", "1.5", "from 1 to 64"},
                                         Rejected{"ANVIL_DEVICE_MEMORY", "0", "1.5G"},
                                         Rejected{"ANVIL_DEVICE_MEMORY", "-1", "1.5G"},
                                         Rejected{"ANVIL_DEVICE_MEMORY", "-8GiB", "1.5G"},
                                         Rejected{"ANVIL_DEVICE_MEMORY", "lots", "1.5G"},
                                         Rejected{"ANVIL_DEVICE_MEMORY", "8GB", "GiB"},
                                         Rejected{"ANVIL_DEVICE_MEMORY", "1MiB", "at least 2 MiB"},
                                         Rejected{"ANVIL_VISIBLE_DEVICES", "a",
                                                  "separated by commas"},
                                         Rejected{"ANVIL_VISIBLE_DEVICES", "0,0", "distinct"},
                                         Rejected{"ANVIL_VISIBLE_DEVICES", "-1", "indices"},
                                         Rejected{"ANVIL_VISIBLE_DEVICES", "0,", "indices"},
                                         Rejected{"ANVIL_VISIBLE_DEVICES", ",0", "indices"},
                                         Rejected{"ANVIL_VISIBLE_DEVICES", "64", "indices"},
                                         Rejected{"ANVIL_SHARE_CORES", "all", "0 or 1"},
                                         Rejected{"ANVIL_HOST_CORES", "-1", "0 to 1024"},
                                         Rejected{"ANVIL_HOST_CORES", "all", "0 to 1024"},
                                         Rejected{"ANVIL_LAUNCH_BLOCKING", "yes", "0 or 1"},
                                         Rejected{"ANVIL_LAUNCH_BLOCKING", "2", "0 or 1"},
                                         Rejected{"ANVIL_SANITIZE", "yes", "0 or 1"},
                                         Rejected{"ANVIL_DEBUG_POISON", "-1", "0 or 1"},
                                         Rejected{"ANVIL_DEBUG_DELAY", "-1", "0 to 1000000"},
                                         Rejected{"ANVIL_DEBUG_DELAY", "1000001", "0 to 1000000"},
                                         Rejected{"ANVIL_DEBUG_DELAY", "1ms", "whole number"}));

}  // namespace
}  // namespace anvil
