// SPDX-License-Identifier: Apache-2.0
//
// Rows of float32, bfloat16 and float16 for tests of kernels: values put in and read back.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "element_type.h"

namespace anvil::kernels {

constexpr ElementType kElementTypes[] = {ElementType::kFloat32, ElementType::kBf16,
                                         ElementType::kFp16};

// Largest relative error of rounding to a type.
inline double rounding_of(ElementType type) {
  return type == ElementType::kFloat32 ? 0x1p-24 : type == ElementType::kBf16 ? 0x1p-8 : 0x1p-11;
}

// `size` elements of a type in memory of their own.
class ElementRows {
 public:
  ElementRows(ElementType type, int64_t size) : type_(type), bytes_(size * element_bytes()) {}

  void* data() { return bytes_.data(); }
  ElementType type() const { return type_; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()) / element_bytes(); }
  const std::vector<char>& bytes() const { return bytes_; }

  float get(int64_t i) const {
    if (type_ == ElementType::kFloat32) return at<float>(i);
    if (type_ == ElementType::kFp16) return static_cast<float>(at<_Float16>(i));
    const uint32_t bits = static_cast<uint32_t>(at<uint16_t>(i)) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  // Values with few enough bits for every type are kept as they are; others are cut.
  void set(int64_t i, float value) {
    if (type_ == ElementType::kFloat32) return put(i, value);
    if (type_ == ElementType::kFp16) return put(i, static_cast<_Float16>(value));
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    put(i, static_cast<uint16_t>(bits >> 16));
  }
  // Numbers of [-1, 1) that look random.
  void fill(uint32_t seed) {
    for (int64_t i = 0; i < size(); ++i) {
      seed = seed * 1664525u + 1013904223u;
      set(i, static_cast<float>(static_cast<int32_t>(seed) >> 16) / 32768.0f);
    }
  }

 private:
  int64_t element_bytes() const { return type_ == ElementType::kFloat32 ? 4 : 2; }
  template <typename T>
  T at(int64_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + i * sizeof(T), sizeof(T));
    return value;
  }
  template <typename T>
  void put(int64_t i, T value) {
    std::memcpy(bytes_.data() + i * sizeof(T), &value, sizeof(T));
  }

  ElementType type_;
  std::vector<char> bytes_;
};

}  // namespace anvil::kernels
