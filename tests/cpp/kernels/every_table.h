// SPDX-License-Identifier: Apache-2.0
//
// Runs a test once per kernel table that this machine can run.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "dispatch.h"

namespace anvil::kernels {

class EveryTable : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    table_ = table_for(GetParam());
    ASSERT_NE(table_, nullptr);
    ASSERT_EQ(table_->isa, GetParam()) << "another instruction set's table is under test";
  }

  const KernelTable& table() const { return *table_; }

 private:
  const KernelTable* table_ = nullptr;
};

#define ANVIL_TEST_EVERY_TABLE(Suite)                                       \
  INSTANTIATE_TEST_SUITE_P(Isa, Suite, testing::ValuesIn(supported_isas()), \
                           [](const auto& info) { return std::string(info.param); })

}  // namespace anvil::kernels
