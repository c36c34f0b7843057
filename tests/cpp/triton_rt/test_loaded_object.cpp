// SPDX-License-Identifier: Apache-2.0
#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "loaded_object.h"

namespace anvil::triton {
namespace {

std::vector<std::byte> sample() {
  std::ifstream file(SAMPLE_OBJECT, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> object(bytes.size());
  std::memcpy(object.data(), bytes.data(), bytes.size());
  return object;
}

template <typename Function>
Function* function(const LoadedObject& object, const char* name) {
  return reinterpret_cast<Function*>(object.function(name));
}

TEST(LoadedObject, RunsWithItsConstantsDataAndLibraryCalls) {
  const LoadedObject object(sample());
  EXPECT_EQ(function<int32_t(int32_t)>(object, "sample_square")(5), 25);
  EXPECT_EQ(function<int32_t()>(object, "sample_through_pointer")(), 9);
  EXPECT_EQ(function<int32_t()>(object, "sample_count")(), 41);
  EXPECT_EQ(function<int32_t()>(object, "sample_count")(), 42);
  EXPECT_EQ(function<double(double, double)>(object, "sample_remainder")(7.5, 2), 1.5);
  int32_t from = 12, to = 0;
  function<void(void*, const void*, size_t)>(object, "sample_copy")(&to, &from, sizeof to);
  EXPECT_EQ(to, 12);
}

TEST(LoadedObject, EachIsItsOwn) {
  const auto object = sample();
  const LoadedObject first(object), second(object);
  EXPECT_EQ(function<int32_t()>(first, "sample_count")(), 41);
  EXPECT_EQ(function<int32_t()>(second, "sample_count")(), 41);
}

TEST(LoadedObject, ManyComeAndGo) {
  const auto object = sample();
  for (int i = 0; i < 5000; ++i) {
    const LoadedObject loaded(object);
    ASSERT_EQ(function<int32_t(int32_t)>(loaded, "sample_square")(2), 4);
  }
}

TEST(LoadedObject, MissingFunctionIsNamed) {
  const LoadedObject object(sample());
  try {
    object.function("no_such");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("no_such"), std::string::npos);
  }
}

TEST(LoadedObject, RefusesWhatIsNoObject) {
  EXPECT_THROW(LoadedObject({}), std::invalid_argument);
  std::vector<std::byte> zeros(4096);
  EXPECT_THROW(LoadedObject{zeros}, std::invalid_argument);
  auto other = sample();
  reinterpret_cast<Elf64_Ehdr*>(other.data())->e_machine = EM_AARCH64;
  EXPECT_THROW(LoadedObject{other}, std::invalid_argument);
}

TEST(LoadedObject, RefusesEveryTruncation) {
  const auto object = sample();
  for (size_t size = 0; size < object.size(); size += 7) {
    EXPECT_THROW(LoadedObject(std::span(object).first(size)), std::invalid_argument) << size;
  }
}

// Damage is found or harmless: loading neither crashes nor reads outside of the file.
TEST(LoadedObject, SurvivesDamage) {
  const auto object = sample();
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    auto damaged = object;
    for (int k = 0; k < 4; ++k) damaged[random() % damaged.size()] = std::byte(random());
    try {
      const LoadedObject loaded(damaged);
    } catch (const std::exception&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace anvil::triton
