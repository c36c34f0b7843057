// SPDX-License-Identifier: Apache-2.0
//
// Functions and conversions of csrc/kernels/vec against float64 and against the format's own rules.
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

// All sorts of numbers: every exponent and sign, and the numbers around where functions change.
std::vector<float> samples() {
  std::vector<float> x = {0.0f, -0.0f, kInfinity, -kInfinity, kNaN, -kNaN};
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 16411) {
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (float edge : {0.5f, 0.625f, 0.75f, 1.0f, 1.41421356f, 1.5f, 10.05f, 13.0f, 14.2f, 87.3f,
                     88.7f, 88.72284f, 103.97f, 104.0f, 105.0f, 1.17549435e-38f, 3.4028235e38f}) {
    for (int step = -50; step <= 50; ++step) {
      const float near = std::bit_cast<float>(std::bit_cast<int32_t>(edge) + step);
      x.push_back(near);
      x.push_back(-near);
    }
  }
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-110, 110);
  for (int i = 0; i < 50'000; ++i) x.push_back(uniform(random));
  return x;
}

// Distance in units of the last place that a float32 of the expected size has.
double units_off(float actual, double expected) {
  if (std::isnan(expected)) return std::isnan(actual) ? 0 : INFINITY;
  const float rounded = static_cast<float>(expected);
  if (actual == rounded) return 0;
  if (!std::isfinite(actual) || !std::isfinite(rounded)) return INFINITY;
  const int exponent = std::max(std::ilogb(expected), -126);
  return std::abs(actual - expected) / std::ldexp(1.0, exponent - 23);
}

class VecMath : public EveryTable {
 protected:
  void check(VecFunctions::OfFloats VecFunctions::* function, double (*expected)(double),
             double units) const {
    const std::vector<float> x = samples();
    std::vector<float> results(x.size());
    (functions_of(GetParam()).*function)(x.data(), static_cast<int64_t>(x.size()), results.data());
    double worst = 0;
    size_t where = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double off = units_off(results[i], expected(double{x[i]}));
      if (off > worst) worst = off, where = i;
    }
    EXPECT_LE(worst, units) << "at " << x[where] << ": " << results[where] << " instead of "
                            << expected(double{x[where]});
    RecordProperty("worst", std::to_string(worst));
  }
};
ANVIL_TEST_EVERY_TABLE(VecMath);

TEST_P(VecMath, Exp) { check(&VecFunctions::exp, std::exp, 1); }

TEST_P(VecMath, Log) { check(&VecFunctions::log, std::log, 1); }

TEST_P(VecMath, Tanh) { check(&VecFunctions::tanh, std::tanh, 2); }

TEST_P(VecMath, Erf) { check(&VecFunctions::erf, std::erf, 2); }

TEST_P(VecMath, Sigmoid) {
  check(
      &VecFunctions::sigmoid,
      [](double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }, 2);
}

TEST_P(VecMath, NormalCdf) {
  check(
      &VecFunctions::normal_cdf, [](double x) { return 0.5 * std::erfc(-x * std::sqrt(0.5)); }, 5);
}

TEST_P(VecMath, SignsOfZero) {
  const VecFunctions& functions = functions_of(GetParam());
  const std::vector<float> x(19, -0.0f);
  std::vector<float> results(x.size());
  for (auto function : {functions.tanh, functions.erf}) {
    function(x.data(), static_cast<int64_t>(x.size()), results.data());
    for (float result : results) EXPECT_TRUE(result == 0 && std::signbit(result));
  }
}

TEST_P(VecMath, Bf16RoundsToNearestEven) {
  std::vector<float> x = samples();
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {  // every tie, and its neighbours
    for (uint32_t low : {0x7fffu, 0x8000u, 0x8001u})
      x.push_back(std::bit_cast<float>(bits << 16 | low));
  }
  std::vector<uint16_t> results(x.size());
  functions_of(GetParam()).to_bf16(x.data(), static_cast<int64_t>(x.size()), results.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]);
    const uint32_t low = bits & 0xffff, high = bits >> 16;
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(std::bit_cast<float>(uint32_t{results[i]} << 16))) << bits;
    } else {
      const bool up = low > 0x8000 || (low == 0x8000 && high % 2 == 1);
      ASSERT_EQ(results[i], high + up) << bits;
    }
  }
}

TEST_P(VecMath, Fp16RoundsToNearestEven) {
  const std::vector<float> x = samples();
  std::vector<uint16_t> halves(x.size());
  std::vector<float> results(x.size());
  const VecFunctions& functions = functions_of(GetParam());
  const int64_t count = static_cast<int64_t>(x.size());
  functions.to_fp16(x.data(), count, halves.data());
  functions.of_fp16(halves.data(), count, results.data());
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(results[i]));
    } else if (std::abs(x[i]) >= 65520) {  // half a step above the largest
      ASSERT_EQ(results[i], std::copysign(kInfinity, x[i]));
    } else {
      const int exponent = x[i] == 0 ? -14 : std::max(std::ilogb(x[i]), -14);
      const double step = std::ldexp(1.0, exponent - 10);
      ASSERT_EQ(double{results[i]}, std::nearbyint(x[i] / step) * step) << x[i];
    }
  }
}

TEST_P(VecMath, EveryHalfSurvivesBothWays) {
  std::vector<uint16_t> halves(0x10000), back(halves.size());
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(halves.size());
  const VecFunctions& functions = functions_of(GetParam());
  const auto check = [&](VecFunctions::Widen widen, VecFunctions::Narrow narrow) {
    widen(halves.data(), 0x10000, wide.data());
    narrow(wide.data(), 0x10000, back.data());
    for (size_t i = 0; i < halves.size(); ++i) {
      if (!std::isnan(wide[i])) {
        ASSERT_EQ(back[i], halves[i]);
      }
    }
  };
  check(functions.of_bf16, functions.to_bf16);
  check(functions.of_fp16, functions.to_fp16);
}

// Parts of a register: as many elements as are asked for, and not one more.
TEST_P(VecMath, PartsAreReadAndWrittenExactly) {
  const VecFunctions& functions = functions_of(GetParam());
  const auto check = [&]<typename From, typename To>(void (*convert)(const From*, int64_t, To*),
                                                     From one, To untouched) {
    for (size_t count = 0; count < 40; ++count) {
      // Memory of exactly that size, so that a sanitizer sees a read too many.
      const std::vector<From> from(count, one);
      std::vector<To> to(count + 64, untouched);
      convert(from.data(), static_cast<int64_t>(count), to.data());
      const To written = count > 0 ? to[0] : untouched;
      EXPECT_TRUE(count == 0 || written != untouched);
      for (size_t i = 0; i < to.size(); ++i) ASSERT_EQ(to[i], i < count ? written : untouched);
    }
  };
  check(functions.exp, 1.0f, -7.0f);
  check(functions.to_bf16, 1.0f, uint16_t{7});
  check(functions.to_fp16, 1.0f, uint16_t{7});
  check(functions.of_bf16, uint16_t{0x3f80}, -7.0f);
  check(functions.of_fp16, uint16_t{0x3c00}, -7.0f);
}

}  // namespace
}  // namespace anvil::kernels
