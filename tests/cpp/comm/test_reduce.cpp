// SPDX-License-Identifier: Apache-2.0
// Reductions of every instruction set that this machine runs, against sums by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "reduce.h"

namespace anvil::comm {
namespace {

std::vector<const ReduceTable*> Tables() {
  std::vector<const ReduceTable*> tables;
  while (const ReduceTable* table = RunnableReduceTable(static_cast<int>(tables.size()))) {
    tables.push_back(table);
  }
  return tables;
}

ReduceFn Find(const ReduceTable& table, DataType type, ReduceOp op) {
  return table.functions[static_cast<int>(type)][static_cast<int>(op)];
}

template <typename T>
T Expected(ReduceOp op, const std::vector<std::vector<T>>& inputs, size_t i) {
  T total = inputs[0][i];
  for (size_t rank = 1; rank < inputs.size(); ++rank) {
    const T next = inputs[rank][i];
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAverage:
        total = static_cast<T>(total + next);
        break;
      case ReduceOp::kProduct:
        total = static_cast<T>(total * next);
        break;
      case ReduceOp::kMin:
        total = std::min(total, next);
        break;
      case ReduceOp::kMax:
        total = std::max(total, next);
        break;
    }
  }
  return op == ReduceOp::kAverage ? static_cast<T>(total / static_cast<T>(inputs.size())) : total;
}

template <typename T>
void CheckType(DataType type, int limit) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> values(std::is_unsigned_v<T> ? 0 : -limit, limit);
  for (const ReduceTable* table : Tables()) {
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAverage}) {
      for (const int ranks : {1, 2, 3, 5}) {
        for (const size_t count : {0, 1, 7, 511, 512, 513, 2000}) {
          std::vector<std::vector<T>> inputs;
          std::vector<const void*> pointers;
          for (int rank = 0; rank < ranks; ++rank) {
            std::vector<T> input(count);
            for (T& value : input) {
              value = static_cast<T>(values(random));
              if (std::is_floating_point_v<T>) value /= 3;
            }
            inputs.push_back(input);
          }
          for (const auto& input : inputs) pointers.push_back(input.data());
          std::vector<T> out(count + 1, static_cast<T>(77));
          Find(*table, type, op)(out.data(), pointers.data(), ranks, count);
          for (size_t i = 0; i < count; ++i) {
            ASSERT_EQ(out[i], Expected(op, inputs, i)) << NameOf(type) << " " << NameOf(op);
          }
          EXPECT_EQ(out[count], static_cast<T>(77));
          if (count == 0) continue;
          // Into the last input.
          Find(*table, type, op)(inputs.back().data(), pointers.data(), ranks, count);
          EXPECT_EQ(std::memcmp(inputs.back().data(), out.data(), count * sizeof(T)), 0);
        }
      }
    }
  }
}

TEST(Reduce, EveryPlainType) {
  CheckType<int8_t>(DataType::kInt8, 5);
  CheckType<uint8_t>(DataType::kUint8, 5);
  CheckType<int16_t>(DataType::kInt16, 90);
  CheckType<uint16_t>(DataType::kUint16, 90);
  CheckType<int32_t>(DataType::kInt32, 90);
  CheckType<uint32_t>(DataType::kUint32, 90);
  CheckType<int64_t>(DataType::kInt64, 5000);
  CheckType<uint64_t>(DataType::kUint64, 5000);
  CheckType<float>(DataType::kFloat32, 5000);
  CheckType<double>(DataType::kFloat64, 5000);
}

TEST(Reduce, IntegersWrapAround) {
  for (const ReduceTable* table : Tables()) {
    const int32_t a = std::numeric_limits<int32_t>::max(), b = 2;
    const void* inputs[] = {&a, &b};
    int32_t out = 0;
    Find(*table, DataType::kInt32, ReduceOp::kSum)(&out, inputs, 2, 1);
    EXPECT_EQ(out, std::numeric_limits<int32_t>::min() + 1);
    const int16_t c = -30000, d = 30000;
    const void* shorts[] = {&c, &d};
    int16_t product = 0;
    Find(*table, DataType::kInt16, ReduceOp::kProduct)(&product, shorts, 2, 1);
    EXPECT_EQ(product, static_cast<int16_t>(-900000000));
  }
}

TEST(Reduce, BoolIsOrAndAnd) {
  for (const ReduceTable* table : Tables()) {
    const bool a[] = {false, false, true, true}, b[] = {false, true, false, true};
    const void* inputs[] = {a, b};
    bool out[4];
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      Find(*table, DataType::kBool, op)(out, inputs, 2, 4);
      for (int i = 0; i < 4; ++i) EXPECT_EQ(out[i], a[i] || b[i]);
    }
    for (const ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin}) {
      Find(*table, DataType::kBool, op)(out, inputs, 2, 4);
      for (int i = 0; i < 4; ++i) EXPECT_EQ(out[i], a[i] && b[i]);
    }
    EXPECT_EQ(Find(*table, DataType::kBool, ReduceOp::kAverage), nullptr);
  }
}

TEST(Reduce, MinimaAndMaximaHandNanOn) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceTable* table : Tables()) {
    const float a[] = {nan, 1.0f, 1.0f}, b[] = {1.0f, nan, 2.0f}, c[] = {0.0f, 0.0f, 3.0f};
    const void* inputs[] = {a, b, c};
    float out[3];
    Find(*table, DataType::kFloat32, ReduceOp::kMin)(out, inputs, 3, 3);
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]));
    EXPECT_EQ(out[2], 1.0f);
    Find(*table, DataType::kFloat32, ReduceOp::kMax)(out, inputs, 3, 3);
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]));
    EXPECT_EQ(out[2], 3.0f);
  }
}

float WidenBfloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// By the definition of the format.
float WidenFloat16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) {
    return mantissa ? std::numeric_limits<float>::quiet_NaN()
                    : sign * std::numeric_limits<float>::infinity();
  }
  return exponent == 0 ? sign * std::ldexp(static_cast<float>(mantissa), -24)
                       : sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

// That `rounded` is the value next to `exact`, of two that are equally near the even one.
void ExpectNearest(uint16_t rounded, double exact, float (*widen)(uint16_t)) {
  if (std::isnan(exact)) {
    EXPECT_TRUE(std::isnan(widen(rounded)));
    return;
  }
  const double value = widen(rounded);
  if (std::isinf(exact)) {
    EXPECT_EQ(value, exact);
    return;
  }
  if (value == exact) return;
  // Infinity stands for the first number beyond the largest.
  const auto finite = [&](uint16_t bits) -> double {
    const float wide = widen(bits);
    if (!std::isinf(wide)) return wide;
    const double largest = widen(static_cast<uint16_t>((bits & 0x7fff) - 1));
    const double before = widen(static_cast<uint16_t>((bits & 0x7fff) - 2));
    return std::copysign(2 * largest - before, wide);
  };
  const double mine = std::abs(finite(rounded) - exact);
  for (const int step : {-1, 1}) {
    const uint16_t magnitude = rounded & 0x7fff;
    if (step < 0 && magnitude == 0) continue;
    if (step > 0 && std::isinf(widen(magnitude))) continue;
    const double other = std::abs(finite(static_cast<uint16_t>(rounded + step)) - exact);
    EXPECT_TRUE(mine < other || (mine == other && rounded % 2 == 0))
        << std::hex << rounded << " for " << exact;
  }
}

void CheckNarrow(DataType type, float (*widen)(uint16_t)) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<uint16_t> shuffled = all;
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(3));
  for (const ReduceTable* table : Tables()) {
    // One rank: every value comes back.
    std::vector<uint16_t> out(all.size());
    const void* one[] = {all.data()};
    Find(*table, type, ReduceOp::kSum)(out.data(), one, 1, all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      if (std::isnan(widen(all[i]))) {
        EXPECT_TRUE(std::isnan(widen(out[i])));
      } else {
        ASSERT_EQ(out[i], all[i]);
      }
    }
    const void* two[] = {all.data(), shuffled.data(), all.data()};
    for (const int ranks : {2, 3}) {
      Find(*table, type, ReduceOp::kSum)(out.data(), two, ranks, all.size());
      for (size_t i = 0; i < all.size(); ++i) {
        float exact = widen(all[i]) + widen(shuffled[i]);
        if (ranks == 3) exact += widen(all[i]);
        ExpectNearest(out[i], exact, widen);
      }
    }
  }
}

TEST(Reduce, Bfloat16IsSummedInFloat32AndRoundedOnce) {
  CheckNarrow(DataType::kBfloat16, WidenBfloat16);
}
TEST(Reduce, Float16IsSummedInFloat32AndRoundedOnce) {
  CheckNarrow(DataType::kFloat16, WidenFloat16);
}

}  // namespace
}  // namespace anvil::comm
