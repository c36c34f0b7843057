// SPDX-License-Identifier: Apache-2.0
#include "experts/expert_plan.h"

#include <algorithm>

namespace anvil::kernels {
namespace {

int64_t blocks_of(int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows; }

int64_t expert_of(const ExpertChoices& chosen, int64_t token, int64_t choice) {
  const int64_t at = token * chosen.ids_stride + choice;
  const int64_t number = chosen.ids_are_int32 ? static_cast<const int32_t*>(chosen.ids)[at]
                                              : static_cast<const int64_t*>(chosen.ids)[at];
  if (number < 0 || number >= chosen.numbers) return -1;
  const int64_t expert = chosen.expert_map == nullptr ? number : chosen.expert_map[number];
  return expert < chosen.experts ? expert : -1;
}

// Pieces of a plan's memory, one behind the other.
class Pieces {
 public:
  explicit Pieces(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <typename T>
  T* take(int64_t count) {
    char* piece = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return reinterpret_cast<T*>(piece);
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* memory_;
  int64_t bytes_ = 0;
};

struct Memory {
  ExpertPlan plan;
  int64_t* next_row;  // [experts]
  int64_t bytes;

  Memory(int64_t tokens, int64_t choices, int64_t experts, void* memory) : plan{} {
    Pieces pieces(memory);
    const int64_t rows = tokens * choices;
    // Every expert may have a block that is not full.
    plan.blocks = pieces.take<ExpertBlock>(std::min(rows, experts + blocks_of(rows)));
    plan.token_of_row = pieces.take<int32_t>(rows);
    plan.row_of_choice = pieces.take<int32_t>(rows);
    next_row = pieces.take<int64_t>(experts);
    bytes = pieces.bytes();
  }
};

}  // namespace

int64_t expert_plan_bytes(int64_t tokens, int64_t choices, int64_t experts) {
  return Memory(tokens, choices, experts, nullptr).bytes;
}

ExpertPlan plan_experts(const ExpertChoices& chosen, void* memory) {
  Memory parts(chosen.tokens, chosen.choices, chosen.experts, memory);
  ExpertPlan& plan = parts.plan;
  int64_t* const next = parts.next_row;
  std::fill_n(next, chosen.experts, 0);
  // A choice's expert is kept where its row will be.
  for (int64_t token = 0; token < chosen.tokens; ++token) {
    for (int64_t choice = 0; choice < chosen.choices; ++choice) {
      const int64_t expert = expert_of(chosen, token, choice);
      plan.row_of_choice[token * chosen.choices + choice] = static_cast<int32_t>(expert);
      if (expert >= 0) ++next[expert];
    }
  }
  for (int64_t expert = 0; expert < chosen.experts; ++expert) {
    const int64_t rows = next[expert], blocks = blocks_of(rows);
    next[expert] = plan.rows;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t first = rows * block / blocks, end = rows * (block + 1) / blocks;
      plan.blocks[plan.num_blocks++] = {expert, plan.rows + first, end - first};
    }
    plan.rows += rows;
  }
  for (int64_t token = 0; token < chosen.tokens; ++token) {
    for (int64_t choice = 0; choice < chosen.choices; ++choice) {
      int32_t& row = plan.row_of_choice[token * chosen.choices + choice];
      if (row < 0) continue;
      row = static_cast<int32_t>(next[row]++);
      plan.token_of_row[row] = static_cast<int32_t>(token);
    }
  }
  return plan;
}

int64_t strip_cost(int64_t rows) { return std::max<int64_t>(rows, 8); }

int64_t product_cost(const ExpertPlan& plan, int64_t columns) {
  const int64_t strips = (columns + kStripColumns - 1) / kStripColumns;
  int64_t cost = 0;
  for (int64_t i = 0; i < plan.num_blocks; ++i) cost += strips * strip_cost(plan.blocks[i].rows);
  return cost;
}

}  // namespace anvil::kernels
