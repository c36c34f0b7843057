// SPDX-License-Identifier: Apache-2.0
//
// Which rows the experts compute. The plan is made from the choices as they are when the kernel
// runs, so that a graph which was captured with others stays right. What bounds its size is known
// before.
#pragma once

#include <cstdint>

#include "experts/experts_args.h"

namespace anvil::kernels {

// What was chosen for some tokens.
struct ExpertChoices {
  const void* ids;  // [tokens, choices]
  bool ids_are_int32;
  int64_t ids_stride;  // elements between tokens
  int64_t tokens, choices;
  // The expert here that a number means, or -1: it is computed elsewhere; null: the number itself.
  const int32_t* expert_map;  // [numbers]
  int64_t numbers;            // what is outside [0, numbers) means no expert
  int64_t experts;            // here
};

struct ExpertPlan {
  ExpertBlock* blocks;     // [num_blocks]
  int32_t* token_of_row;   // [rows]
  int32_t* row_of_choice;  // [tokens, choices]; -1 where no expert here computes it
  int64_t rows, num_blocks;
};

// Bytes of the memory that a plan for so many choices needs, at a multiple of 64.
int64_t expert_plan_bytes(int64_t tokens, int64_t choices, int64_t experts);

// A plan in memory of expert_plan_bytes.
ExpertPlan plan_experts(const ExpertChoices& chosen, void* memory);

// What the outputs of a product cost, to be shared evenly among workers: columns of a block come in
// strips, and a strip costs as many units as it has rows, but not less than its weights take to
// arrive.
int64_t strip_cost(int64_t rows);
int64_t product_cost(const ExpertPlan& plan, int64_t columns);

}  // namespace anvil::kernels
