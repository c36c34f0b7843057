// SPDX-License-Identifier: Apache-2.0
//
// Elements of one byte, csrc/kernels/vec/cache_elements-inl.h, against the formats' own rules.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "every_table.h"
#include "functions_of.h"

namespace anvil::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// What a byte means, by the definition of its type.
double meaning_of_float8(uint8_t byte, int mantissa_bits, int bias) {
  const int exponent = (byte & 0x7f) >> mantissa_bits;
  const int mantissa = byte & ((1 << mantissa_bits) - 1);
  const double sign = (byte & 0x80) != 0 ? -1 : 1;
  const int leading = exponent == 0 ? 0 : 1 << mantissa_bits;
  return sign * std::ldexp(leading + mantissa, std::max(exponent, 1) - bias - mantissa_bits);
}

double meaning_of_e4m3(uint8_t byte) {
  return (byte & 0x7f) == 0x7f ? kNaN : meaning_of_float8(byte, 3, 7);
}

double meaning_of_e5m2(uint8_t byte) {
  if ((byte & 0x7f) == 0x7c) return byte == 0x7c ? kInfinity : -kInfinity;
  return (byte & 0x7f) > 0x7c ? kNaN : meaning_of_float8(byte, 2, 15);
}

double meaning_of_int8(uint8_t byte) { return static_cast<int8_t>(byte); }

struct Kind {
  const char* name;
  VecFunctions::ByteElement VecFunctions::* functions;
  double (*meaning)(uint8_t);
};
constexpr Kind kKinds[] = {{"e4m3", &VecFunctions::e4m3, meaning_of_e4m3},
                           {"e5m2", &VecFunctions::e5m2, meaning_of_e5m2},
                           {"int8", &VecFunctions::int8, meaning_of_int8}};

std::vector<uint8_t> every_byte() {
  std::vector<uint8_t> bytes(256);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i);
  return bytes;
}

::testing::AssertionResult same(double actual, double expected) {
  const bool equal = std::isnan(expected)
                         ? std::isnan(actual)
                         : actual == expected && std::signbit(actual) == std::signbit(expected);
  if (equal) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << actual << " instead of " << expected;
}

// The byte whose meaning is nearest to x among the finite ones; between two, the even one.
uint8_t nearest(const Kind& kind, float x) {
  if (std::isnan(x)) {
    if (kind.meaning == meaning_of_int8) return 0;
    return std::signbit(x) ? 0xff : 0x7f;
  }
  const double clamped = std::clamp(double{x}, -1e6, 1e6);
  uint8_t best = 0;
  double least = kInfinity;
  for (const uint8_t byte : every_byte()) {
    const double meaning = kind.meaning(byte);
    if (!std::isfinite(meaning)) continue;
    const double distance = std::abs(meaning - clamped);
    if (distance > least) continue;
    const bool tie = distance == least && meaning != kind.meaning(best);
    const bool same_sign = std::signbit(meaning) == std::signbit(x);
    if (tie ? byte % 2 == 0 : distance < least || same_sign) best = byte, least = distance;
  }
  return best;
}

class CacheElements : public EveryTable {
 protected:
  const VecFunctions::ByteElement& functions(const Kind& kind) const {
    return functions_of(GetParam()).*kind.functions;
  }
};
ANVIL_TEST_EVERY_TABLE(CacheElements);

TEST_P(CacheElements, EveryByteIsReadExactly) {
  const std::vector<uint8_t> bytes = every_byte();
  for (const Kind& kind : kKinds) {
    std::vector<float> results(bytes.size());
    functions(kind).widen(bytes.data(), 256, results.data());
    for (const uint8_t byte : bytes) {
      EXPECT_TRUE(same(results[byte], kind.meaning(byte))) << kind.name << " " << int{byte};
      EXPECT_TRUE(same(functions(kind).widen_one(byte), kind.meaning(byte)))
          << kind.name << " " << int{byte};
    }
  }
}

TEST_P(CacheElements, EveryByteIsReadExactlyAsBf16) {
  const std::vector<uint8_t> bytes = every_byte();
  for (const Kind& kind : kKinds) {
    const auto widen = functions(kind).widen_to_bf16;
    ASSERT_EQ(widen != nullptr, table().vector_bytes == 64);
    if (widen == nullptr) continue;
    for (const int64_t first : {0, 1, 37}) {  // other lanes, and a part of a register at the end
      std::vector<uint16_t> results(256 - first, uint16_t{7});
      widen(bytes.data() + first, 256 - first, results.data());
      for (size_t i = 0; i < results.size(); ++i) {
        const uint8_t byte = bytes[first + i];
        const float value = std::bit_cast<float>(uint32_t{results[i]} << 16);
        EXPECT_TRUE(same(value, kind.meaning(byte))) << kind.name << " " << int{byte};
      }
    }
  }
}

TEST_P(CacheElements, EveryNumberSurvivesBothWays) {
  const std::vector<uint8_t> bytes = every_byte();
  for (const Kind& kind : kKinds) {
    std::vector<float> wide(bytes.size());
    std::vector<uint8_t> back(bytes.size());
    functions(kind).widen(bytes.data(), 256, wide.data());
    functions(kind).narrow(wide.data(), 256, back.data());
    for (const uint8_t byte : bytes) {
      if (!std::isfinite(wide[byte])) continue;
      EXPECT_EQ(int{back[byte]}, int{byte}) << kind.name;
    }
  }
}

TEST_P(CacheElements, NumbersAreRoundedToNearestEvenAndSaturate) {
  for (const Kind& kind : kKinds) {
    std::vector<float> x = {0.0f,  -0.0f,  kInfinity, -kInfinity, kNaN,
                            -kNaN, 1e-45f, -1e-45f,   3.4e38f,    -3.4e38f};
    // Half way between two neighbours, and right beside that.
    std::vector<double> numbers;
    for (const uint8_t byte : every_byte()) {
      if (std::isfinite(kind.meaning(byte))) numbers.push_back(kind.meaning(byte));
    }
    std::sort(numbers.begin(), numbers.end());
    numbers.push_back(2 * numbers.back());
    numbers.insert(numbers.begin(), 2 * numbers.front());
    for (size_t i = 1; i < numbers.size(); ++i) {
      const float middle = static_cast<float>((numbers[i - 1] + numbers[i]) / 2);
      for (const float toward : {-kInfinity, middle, kInfinity}) {
        x.push_back(std::nextafter(middle, toward));
      }
    }
    std::mt19937 random(1);
    for (const float spread : {1e-4f, 0.02f, 1.0f, 130.0f, 500.0f, 6e4f}) {
      std::normal_distribution<float> normal(0, spread);
      for (int i = 0; i < 500; ++i) x.push_back(normal(random));
    }
    std::vector<uint8_t> results(x.size());
    functions(kind).narrow(x.data(), static_cast<int64_t>(x.size()), results.data());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(int{results[i]}, int{nearest(kind, x[i])}) << kind.name << " of " << x[i];
    }
  }
}

// Parts of a register: as many elements as are asked for, and not one more.
TEST_P(CacheElements, PartsAreReadAndWrittenExactly) {
  for (const Kind& kind : kKinds) {
    for (size_t count = 0; count < 80; ++count) {
      // Memory of exactly that size, so that a sanitizer sees a read too many.
      const std::vector<float> ones(count, 1.0f);
      std::vector<uint8_t> bytes(count + 64, uint8_t{0x5a});
      const int64_t size = static_cast<int64_t>(count);
      functions(kind).narrow(ones.data(), size, bytes.data());
      for (size_t i = count; i < bytes.size(); ++i) ASSERT_EQ(int{bytes[i]}, 0x5a);
      const std::vector<uint8_t> exact(bytes.begin(), bytes.begin() + size);
      std::vector<float> wide(count + 64, -7.0f);
      functions(kind).widen(exact.data(), size, wide.data());
      for (size_t i = 0; i < wide.size(); ++i) ASSERT_EQ(wide[i], i < count ? 1.0f : -7.0f);
      if (functions(kind).widen_to_bf16 == nullptr) continue;
      std::vector<uint16_t> halves(count + 64, uint16_t{7});
      functions(kind).widen_to_bf16(exact.data(), size, halves.data());
      for (size_t i = 0; i < halves.size(); ++i) ASSERT_EQ(halves[i], i < count ? 0x3f80 : 7);
    }
  }
}

}  // namespace
}  // namespace anvil::kernels
