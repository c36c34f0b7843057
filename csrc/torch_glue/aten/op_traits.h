// SPDX-License-Identifier: Apache-2.0
// What an op's schema says about how it can be called.
#pragma once

#include <ATen/core/function_schema.h>

#include <optional>
#include <string>
#include <vector>

namespace anvil {

struct OpTraits {
  explicit OpTraits(const c10::FunctionSchema& schema);

  std::string name;  // "aten::add.Tensor"
  size_t argument_count;
  size_t return_count;
  bool mutates;                     // some argument is written
  bool writes_its_only_tensor;      // and returns it: fill_, normal_
  bool shares_results;              // there may be several, over one memory
  bool returns_tensors;             // and nothing else
  std::optional<size_t> generator;  // position of the Generator argument
  // By argument: a number whose value no result's shape depends on, only what kind of number it is.
  // So are numbers that are computed with, but not those of a factory (arange, also with out=);
  // integers are sizes and dimensions.
  std::vector<bool> kind_only;
};

bool is_written(const c10::Argument& argument);

}  // namespace anvil
