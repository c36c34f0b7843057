// SPDX-License-Identifier: Apache-2.0
#include "aten/shape_functions.h"

#include <ATen/MetaFunctions.h>
#include <ATen/Operators.h>

#include <string>
#include <unordered_map>

namespace anvil {
namespace {

using Table = std::unordered_map<std::string, c10::KernelFunction>;

template <typename Schema>
void add(Table& table, const char* name, Schema* function) {
  table.emplace(name, c10::KernelFunction::makeFromUnboxedRuntimeFunction(function));
}

const Table& table() {
  static const auto* functions = [] {
    auto* all = new Table;
#define SHAPE_FUNCTION(name, function, op) \
  add<at::_ops::op::schema>(*all, name, &at::meta::function);
#include <shape_functions.inc>  // made by list_shape_functions.py
#undef SHAPE_FUNCTION
    return all;
  }();
  return *functions;
}

}  // namespace

const c10::KernelFunction* find_shape_function(const c10::OperatorHandle& op) {
  const auto found = table().find(c10::toString(op.operator_name()));
  return found == table().end() ? nullptr : &found->second;
}

}  // namespace anvil
