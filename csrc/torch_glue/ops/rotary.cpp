// SPDX-License-Identifier: Apache-2.0
#include "ops/rotary.h"

#include <array>

namespace anvil::ops {
namespace {

// Pairs of each of the three positions; all of them are the time's where there are no sections.
std::array<int64_t, 3> check_sections(const Checks& check, at::IntArrayRef section, int64_t half) {
  TORCH_CHECK_VALUE(section.size() == 3, check.op(),
                    ": mrope_section must be three numbers for positions of shape [3, tokens], "
                    "but is ",
                    section);
  for (int64_t pairs : section) check.at_least(pairs, "a number of mrope_section", 0);
  TORCH_CHECK_VALUE(section[0] + section[1] + section[2] == half, check.op(),
                    ": mrope_section must sum to half the rotary dimension, ", half, ", but is ",
                    section);
  return {section[0], section[1], section[2]};
}

// States that are written, one row a position.
kernels::HeadStates turned_states(const Checks& check, const at::Tensor& states, const char* name,
                                  int64_t tokens, int64_t head_size, c10::Device device) {
  const kernels::HeadStates result = head_states(check, states, name, head_size, device);
  TORCH_CHECK_VALUE(states.size(0) == tokens, check.op(), ": ", name, " has ", states.size(0),
                    " tokens, but positions has ", tokens);
  check.writable(states, name);
  return result;
}

}  // namespace

kernels::HeadStates head_states(const Checks& check, const at::Tensor& states, const char* name,
                                int64_t head_size, c10::Device device) {
  const kernels::ElementType type = check.float_type(states, name);
  TORCH_CHECK_VALUE(states.dim() == 2 || states.dim() == 3, check.op(), ": ", name,
                    " must have shape [tokens, heads * head_size] or [tokens, heads, head_size], "
                    "but has ",
                    states.sizes());
  const int64_t last = states.size(-1);
  TORCH_CHECK_VALUE(states.dim() == 2 ? last % head_size == 0 : last == head_size, check.op(),
                    ": the last dimension of ", name, " is ", last, ", which is not ",
                    states.dim() == 2 ? "a multiple of " : "", "the head size of ", head_size);
  check.last_dim_contiguous(states, name);
  check.device(states, name, device);
  return {
      // Who only reads gets the same pointer.
      .data = const_cast<void*>(states.const_data_ptr()),
      .token_stride = states.stride(0),
      .head_stride = states.dim() == 2 ? head_size : states.stride(1),
      .heads = states.dim() == 2 ? last / head_size : states.size(1),
      .type = type,
  };
}

kernels::RotaryArgs rotary_args(const Checks& check, const at::Tensor& positions,
                                const at::Tensor& query, const at::Tensor& key, int64_t head_size,
                                const at::Tensor& cos_sin_cache, bool is_neox,
                                at::IntArrayRef mrope_section, bool mrope_interleaved) {
  const c10::Device device = query.device();
  check.index_type(positions, "positions");
  TORCH_CHECK_VALUE(positions.dim() == 1 || (positions.dim() == 2 && positions.size(0) == 3),
                    check.op(), ": positions must have shape [tokens] or [3, tokens], but has ",
                    positions.sizes());
  check.device(positions, "positions", device);
  check.at_least(head_size, "head_size", 1);
  const kernels::ElementType table_type = check.float_type(cos_sin_cache, "cos_sin_cache");
  check.dim(cos_sin_cache, "cos_sin_cache", 2);
  check.last_dim_contiguous(cos_sin_cache, "cos_sin_cache");
  check.device(cos_sin_cache, "cos_sin_cache", device);
  const int64_t rotary_dim = cos_sin_cache.size(1);
  TORCH_CHECK_VALUE(rotary_dim % 2 == 0, check.op(),
                    ": the rotary dimension, the last of cos_sin_cache, must be even, but is ",
                    rotary_dim);
  TORCH_CHECK_VALUE(rotary_dim <= head_size, check.op(),
                    ": the rotary dimension, the last of cos_sin_cache, is ", rotary_dim,
                    ", which is more than the head size of ", head_size);

  const bool multimodal = positions.dim() == 2;
  const int64_t tokens = positions.size(-1), half = rotary_dim / 2;
  const std::array<int64_t, 3> section =
      multimodal ? check_sections(check, mrope_section, half) : std::array<int64_t, 3>{half, 0, 0};
  const kernels::HeadStates queries =
      turned_states(check, query, "query", tokens, head_size, device);
  kernels::HeadStates keys = {nullptr, 0, 0, 0, queries.type};
  if (key.defined()) {
    keys = turned_states(check, key, "key", tokens, head_size, device);
    check.disjoint(query, "query", key, "key");
    check.disjoint(key, "key", positions, "positions");
    check.disjoint(key, "key", cos_sin_cache, "cos_sin_cache");
  }
  check.disjoint(query, "query", positions, "positions");
  check.disjoint(query, "query", cos_sin_cache, "cos_sin_cache");

  return {
      .positions = positions.const_data_ptr(),
      .position_stride = positions.stride(-1),
      .axis_stride = multimodal ? positions.stride(0) : 0,
      .positions_are_int32 = positions.scalar_type() == at::kInt,
      .table = cos_sin_cache.const_data_ptr(),
      .table_stride = cos_sin_cache.stride(0),
      .table_type = table_type,
      .half = half,
      .is_neox = is_neox,
      .multimodal = multimodal,
      .interleaved = mrope_interleaved,
      .section = {section[0], section[1], section[2]},
      .query = queries,
      .key = keys,
  };
}

void check_positions(const Checks& check, const kernels::RotaryArgs& args, int64_t tokens,
                     int64_t max_position) {
  constexpr const char* kNames[] = {"positions[0]", "positions[1]", "positions[2]"};
  constexpr const char* kMeaning = "rows of cos_sin_cache";
  for (int64_t axis = 0; axis < (args.multimodal ? 3 : 1); ++axis) {
    const char* name = args.multimodal ? kNames[axis] : "positions";
    const auto in_table = [&](const auto* values) {
      check.in_range(values + axis * args.axis_stride, tokens, args.position_stride, 0,
                     max_position, name, 0, kMeaning);
    };
    if (args.positions_are_int32) {
      in_table(static_cast<const int32_t*>(args.positions));
    } else {
      in_table(static_cast<const int64_t*>(args.positions));
    }
  }
}

int64_t rotary_bytes(const kernels::RotaryArgs& args) {
  const auto row = [&](const kernels::HeadStates& states) {
    return states.heads * 2 * args.half * (states.type == kernels::ElementType::kFloat32 ? 4 : 2);
  };
  return row(args.query) + row(args.key);
}

}  // namespace anvil::ops
