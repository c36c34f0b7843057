// SPDX-License-Identifier: Apache-2.0
// Element types and reductions of the collectives.
#pragma once

#include <cstddef>
#include <cstdint>

namespace anvil::comm {

enum class DataType : uint8_t {
  kInt8,
  kUint8,
  kInt16,
  kUint16,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kBool,
};
inline constexpr int kDataTypes = 13;

enum class ReduceOp : uint8_t { kSum, kProduct, kMin, kMax, kAverage };
inline constexpr int kReduceOps = 5;

constexpr size_t SizeOf(DataType type) {
  constexpr uint8_t kSizes[kDataTypes] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1};
  return kSizes[static_cast<int>(type)];
}

constexpr const char* NameOf(DataType type) {
  constexpr const char* kNames[kDataTypes] = {"int8",    "uint8",   "int16",  "uint16",  "int32",
                                              "uint32",  "int64",   "uint64", "float16", "bfloat16",
                                              "float32", "float64", "bool"};
  return kNames[static_cast<int>(type)];
}

constexpr const char* NameOf(ReduceOp op) {
  constexpr const char* kNames[kReduceOps] = {"sum", "product", "min", "max", "average"};
  return kNames[static_cast<int>(op)];
}

}  // namespace anvil::comm
