// SPDX-License-Identifier: Apache-2.0
#include "aten/plan_key.h"

#include <bit>
#include <functional>

namespace anvil {

bool PlanKeyHasher::value(const c10::IValue& value, bool kind_only) {
  enum : uint64_t {
    kNone = 1,
    kInt,
    kDouble,
    kBool,
    kComplex,
    kString,
    kList,
    kDevice,
    kGenerator
  };
  if (value.isNone()) {
    word(kNone);
  } else if (value.isInt()) {
    word(kInt);
    if (!kind_only) word(static_cast<uint64_t>(value.toInt()));
  } else if (value.isDouble()) {
    word(kDouble);
    if (!kind_only) word(std::bit_cast<uint64_t>(value.toDouble()));
  } else if (value.isBool()) {
    word(kBool);
    if (!kind_only) word(value.toBool() ? 1 : 0);
  } else if (value.isComplexDouble()) {
    word(kComplex);
    if (kind_only) return true;
    word(std::bit_cast<uint64_t>(value.toComplexDouble().real()));
    word(std::bit_cast<uint64_t>(value.toComplexDouble().imag()));
  } else if (value.isString()) {
    word(kString);
    word(std::hash<std::string_view>()(value.toStringView()));
  } else if (value.isDevice()) {
    word(kDevice);
  } else if (value.isGenerator()) {
    word(kGenerator);
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    const auto items = value.toListRef();
    word(kList);
    word(items.size());
    for (const c10::IValue& item : items) {
      if (item.isTensor()) {
        tensor(item.toTensor());
      } else {
        word(kNone);
      }
    }
  } else if (value.isList()) {
    const auto items = value.toListRef();
    word(kList);
    word(items.size());
    for (const c10::IValue& item : items) {
      if (item.isList() || !this->value(item, kind_only)) return false;
    }
  } else {
    return false;
  }
  return true;
}

}  // namespace anvil
