// SPDX-License-Identifier: Apache-2.0
//
// Rows for tests of kernels: values in one of the element types, at a distance from each other,
// with other values in between that must stay.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "vec/rows.h"

namespace anvil::kernels {

inline size_t bytes_of(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }

// The distance between 1 and the next number.
inline double unit_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return 0x1p-23;
    case ElementType::kBf16:
      return 0x1p-7;
    case ElementType::kFp16:
      return 0x1p-10;
  }
  return 0;
}

constexpr ElementType kElementTypes[] = {ElementType::kFloat32, ElementType::kBf16,
                                         ElementType::kFp16};

class RowsOfValues {
 public:
  // Every byte is 0xff, which is NaN in every type.
  RowsOfValues(ElementType type, int64_t rows, int64_t size)
      : type_(type), rows_(rows), size_(size), stride_(size + 3) {
    bytes_.assign(static_cast<size_t>(rows * stride_ + 2) * bytes_of(type), 0xff);
  }

  Rows rows() {
    Rows rows = {};
    rows.data = at(0, 0);
    rows.type = type_;
    rows.dims = 1;
    rows.strides[0] = stride_;
    return rows;
  }
  Parameters parameters() { return {.data = at(0, 0), .type = type_}; }

  void set(int64_t row, int64_t i, double value) {
    if (type_ == ElementType::kFloat32) return put(row, i, static_cast<float>(value));
    if (type_ == ElementType::kFp16) return put(row, i, static_cast<_Float16>(value));
    const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    put(row, i, static_cast<uint16_t>(bits >> 16));  // cut off: any value of the type will do
  }
  double get(int64_t row, int64_t i) {
    if (type_ == ElementType::kFloat32) return taken<float>(row, i);
    if (type_ == ElementType::kFp16) return double{static_cast<float>(taken<_Float16>(row, i))};
    return std::bit_cast<float>(uint32_t{taken<uint16_t>(row, i)} << 16);
  }
  std::vector<double> row(int64_t row) {
    std::vector<double> values;
    for (int64_t i = 0; i < size_; ++i) values.push_back(get(row, i));
    return values;
  }

  void fill_normal(std::mt19937& random, double mean, double deviation) {
    std::normal_distribution<double> normal(mean, deviation);
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t i = 0; i < size_; ++i) set(row, i, normal(random));
    }
  }

  // Compares a row with float64 values, within `units` of the type and `absolute`.
  void expect(int64_t row, const std::vector<double>& expected, double units, double absolute,
              const std::string& what) {
    ASSERT_EQ(expected.size(), static_cast<size_t>(size_));
    for (int64_t i = 0; i < size_; ++i) {
      const double found = get(row, i), wanted = expected[static_cast<size_t>(i)];
      if (found == wanted || (std::isnan(found) && std::isnan(wanted))) continue;
      const double allowed = units * unit_of(type_) * std::abs(wanted) + absolute;
      ASSERT_LE(std::abs(found - wanted), allowed)
          << what << ", row " << row << ", element " << i << ": " << found << " for " << wanted;
    }
  }

  bool surroundings_are_intact() {
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t i = 0; i < size_; ++i) {
        char* element = at(row, i);
        for (size_t byte = 0; byte < bytes_of(type_); ++byte) element[byte] = '\xff';
      }
    }
    for (unsigned char byte : bytes_) {
      if (byte != 0xff) return false;
    }
    return true;
  }

 private:
  char* at(int64_t row, int64_t i) {
    const size_t element = static_cast<size_t>(1 + row * stride_ + i);
    return reinterpret_cast<char*>(bytes_.data()) + element * bytes_of(type_);
  }
  template <typename T>
  void put(int64_t row, int64_t i, T value) {
    __builtin_memcpy(at(row, i), &value, sizeof(value));
  }
  template <typename T>
  T taken(int64_t row, int64_t i) {
    T value;
    __builtin_memcpy(&value, at(row, i), sizeof(value));
    return value;
  }

  ElementType type_;
  int64_t rows_, size_, stride_;
  std::vector<unsigned char> bytes_;
};

}  // namespace anvil::kernels
