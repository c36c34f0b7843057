// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "cpu_features.h"
#include "dispatch.h"

namespace anvil::kernels {
namespace {

std::string refusal_of(std::string_view requested) {
  try {
    select_table(requested);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(Dispatch, ListsWhatTheProcessorCanRunBestFirst) {
  std::vector<std::string_view> expected;
#if defined(__x86_64__)
  if (cpu_features().avx512_bf16) expected.push_back("avx512_bf16");
  if (cpu_features().avx512) expected.push_back("avx512");
  if (cpu_features().avx2) expected.push_back("avx2");
#endif
  expected.push_back("scalar");
  EXPECT_EQ(supported_isas(), expected);
}

TEST(Dispatch, EveryTableIsItsOwn) {
  for (std::string_view isa : supported_isas()) {
    const KernelTable* table = table_for(isa);
    ASSERT_NE(table, nullptr) << isa;
    EXPECT_EQ(table->isa, isa);
    EXPECT_EQ(table->vector_bytes, isa == "scalar" ? 8 : isa == "avx2" ? 32 : 64) << isa;
    EXPECT_EQ(&select_table(isa), table) << isa;
    for (std::string_view other : supported_isas()) {
      if (other == isa) continue;
      EXPECT_NE(table->write_kv_cache, table_for(other)->write_kv_cache);
    }
  }
}

TEST(Dispatch, UnsetMeansTheBest) { EXPECT_EQ(select_table("").isa, supported_isas().front()); }

TEST(Dispatch, UnknownNameIsRefusedWithTheChoices) {
  EXPECT_EQ(table_for("sse9"), nullptr);
  const std::string message = refusal_of("sse9");
  EXPECT_NE(message.find("ANVIL_ISA=sse9: no such instruction set"), std::string::npos) << message;
  for (std::string_view isa : supported_isas()) {
    EXPECT_NE(message.find(isa), std::string::npos) << message;
  }
}

TEST(Dispatch, KnownNameThatCannotRunHereSaysSo) {
  const std::vector<std::string_view> supported = supported_isas();
  for (std::string_view isa : {"avx512_bf16", "avx512", "avx2", "scalar"}) {
    if (std::ranges::find(supported, isa) != supported.end()) {
      EXPECT_EQ(refusal_of(isa), "");
    } else {
      EXPECT_NE(refusal_of(isa).find("this machine cannot run"), std::string::npos);
    }
  }
}

// Started once per value of ANVIL_ISA by ctest.
TEST(ActiveTable, FollowsTheEnvironment) {
  const char* variable = std::getenv("ANVIL_ISA");
  const std::string requested = variable == nullptr ? "" : variable;
  if (!requested.empty() && table_for(requested) == nullptr) {
    EXPECT_THROW(active_table(), std::invalid_argument);
    EXPECT_THROW(active_isa(), std::invalid_argument) << "a refusal must not stick as a success";
    return;
  }
  EXPECT_EQ(active_isa(), requested.empty() ? supported_isas().front() : requested);
  EXPECT_EQ(&active_table(), table_for(active_isa()));
}

}  // namespace
}  // namespace anvil::kernels
