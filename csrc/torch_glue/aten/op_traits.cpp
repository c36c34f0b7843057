// SPDX-License-Identifier: Apache-2.0
#include "aten/op_traits.h"

#include <ATen/core/jit_type.h>

#include <algorithm>

namespace anvil {
namespace {

c10::TypeKind kind_of(const c10::Argument& argument) {
  const auto optional = argument.type()->cast<c10::OptionalType>();
  return (optional ? optional->getElementType() : argument.type())->kind();
}

// A tensor or a list of tensors.
bool holds_tensors(const c10::TypePtr& type) {
  if (const auto* list = type->castRaw<c10::ListType>())
    return holds_tensors(list->getElementType());
  if (const auto optional = type->cast<c10::OptionalType>())
    return holds_tensors(optional->getElementType());
  return type->kind() == c10::TypeKind::TensorType;
}

bool writes_only_tensor(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  const auto tensors =
      std::count_if(arguments.begin(), arguments.end(),
                    [](const c10::Argument& argument) { return holds_tensors(argument.type()); });
  return schema.name().ends_with('_') && schema.returns().size() == 1 && tensors == 1 &&
         kind_of(arguments[0]) == c10::TypeKind::TensorType && is_written(arguments[0]);
}

}  // namespace

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

OpTraits::OpTraits(const c10::FunctionSchema& schema)
    : name(c10::toString(schema.operator_name())),
      argument_count(schema.arguments().size()),
      return_count(schema.returns().size()),
      mutates(schema.is_mutable()),
      writes_its_only_tensor(writes_only_tensor(schema)),
      shares_results(return_count != 1 ||
                     schema.returns()[0].type()->kind() == c10::TypeKind::ListType),
      returns_tensors(
          std::all_of(schema.returns().begin(), schema.returns().end(),
                      [](const c10::Argument& result) { return holds_tensors(result.type()); })) {
  const auto& arguments = schema.arguments();
  const bool factory =
      std::none_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
        return holds_tensors(argument.type()) && !is_written(argument);
      });
  for (size_t i = 0; i < argument_count; ++i) {
    const c10::TypeKind kind = kind_of(arguments[i]);
    if (kind == c10::TypeKind::GeneratorType) generator = i;
    const bool number = kind == c10::TypeKind::NumberType || kind == c10::TypeKind::FloatType;
    kind_only.push_back(number && (writes_its_only_tensor || !factory));
  }
}

}  // namespace anvil
