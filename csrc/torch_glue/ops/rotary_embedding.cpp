// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <optional>

#include "dispatch.h"
#include "ops/checks.h"
#include "ops/launch.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::rotary_embedding");

// [tokens, heads * head_size] or [tokens, heads, head_size], written.
kernels::RotaryStates check_states(const at::Tensor& states, const char* name, int64_t tokens,
                                   int64_t head_size, c10::Device device) {
  const kernels::ElementType type = kCheck.float_type(states, name);
  TORCH_CHECK_VALUE(states.dim() == 2 || states.dim() == 3, kCheck.op(), ": ", name,
                    " must have shape [tokens, heads * head_size] or [tokens, heads, head_size], "
                    "but has ",
                    states.sizes());
  TORCH_CHECK_VALUE(states.size(0) == tokens, kCheck.op(), ": ", name, " has ", states.size(0),
                    " tokens, but positions has ", tokens);
  const int64_t last = states.size(-1);
  TORCH_CHECK_VALUE(states.dim() == 2 ? last % head_size == 0 : last == head_size, kCheck.op(),
                    ": the last dimension of ", name, " is ", last, ", which is not ",
                    states.dim() == 2 ? "a multiple of " : "", "the head size of ", head_size);
  kCheck.last_dim_contiguous(states, name);
  kCheck.device(states, name, device);
  kCheck.writable(states, name);
  return {
      .data = states.mutable_data_ptr(),
      .token_stride = states.stride(0),
      .head_stride = states.dim() == 2 ? head_size : states.stride(1),
      .heads = states.dim() == 2 ? last / head_size : states.size(1),
      .type = type,
  };
}

// Pairs of each of the three positions; all of them are the time's where there are no sections.
std::array<int64_t, 3> check_sections(at::IntArrayRef section, int64_t half) {
  TORCH_CHECK_VALUE(section.size() == 3, kCheck.op(),
                    ": mrope_section must be three numbers for positions of shape [3, tokens], "
                    "but is ",
                    section);
  for (int64_t pairs : section) kCheck.at_least(pairs, "a number of mrope_section", 0);
  TORCH_CHECK_VALUE(section[0] + section[1] + section[2] == half, kCheck.op(),
                    ": mrope_section must sum to half the rotary dimension, ", half, ", but is ",
                    section);
  return {section[0], section[1], section[2]};
}

void check_positions(const kernels::RotaryArgs& args, int64_t tokens, int64_t max_position) {
  constexpr const char* kNames[] = {"positions[0]", "positions[1]", "positions[2]"};
  constexpr const char* kMeaning = "rows of cos_sin_cache";
  for (int64_t axis = 0; axis < (args.multimodal ? 3 : 1); ++axis) {
    const char* name = args.multimodal ? kNames[axis] : "positions";
    const auto check = [&](const auto* values) {
      kCheck.in_range(values + axis * args.axis_stride, tokens, args.position_stride, 0,
                      max_position, name, 0, kMeaning);
    };
    if (args.positions_are_int32) {
      check(static_cast<const int32_t*>(args.positions));
    } else {
      check(static_cast<const int64_t*>(args.positions));
    }
  }
}

void rotary_embedding(const at::Tensor& positions, at::Tensor& query,
                      const std::optional<at::Tensor>& key, int64_t head_size,
                      const at::Tensor& cos_sin_cache, bool is_neox, at::IntArrayRef mrope_section,
                      bool mrope_interleaved) {
  const c10::Device device = query.device();
  kCheck.index_type(positions, "positions");
  TORCH_CHECK_VALUE(positions.dim() == 1 || (positions.dim() == 2 && positions.size(0) == 3),
                    kCheck.op(), ": positions must have shape [tokens] or [3, tokens], but has ",
                    positions.sizes());
  kCheck.device(positions, "positions", device);
  kCheck.at_least(head_size, "head_size", 1);
  const kernels::ElementType table_type = kCheck.float_type(cos_sin_cache, "cos_sin_cache");
  kCheck.dim(cos_sin_cache, "cos_sin_cache", 2);
  kCheck.last_dim_contiguous(cos_sin_cache, "cos_sin_cache");
  kCheck.device(cos_sin_cache, "cos_sin_cache", device);
  const int64_t rotary_dim = cos_sin_cache.size(1);
  TORCH_CHECK_VALUE(rotary_dim % 2 == 0, kCheck.op(),
                    ": the rotary dimension, the last of cos_sin_cache, must be even, but is ",
                    rotary_dim);
  TORCH_CHECK_VALUE(rotary_dim <= head_size, kCheck.op(),
                    ": the rotary dimension, the last of cos_sin_cache, is ", rotary_dim,
                    ", which is more than the head size of ", head_size);

  const bool multimodal = positions.dim() == 2;
  const int64_t tokens = positions.size(-1), half = rotary_dim / 2;
  const std::array<int64_t, 3> section =
      multimodal ? check_sections(mrope_section, half) : std::array<int64_t, 3>{half, 0, 0};
  const kernels::RotaryStates queries = check_states(query, "query", tokens, head_size, device);
  kernels::RotaryStates keys = {nullptr, 0, 0, 0, queries.type};
  const at::Tensor other = key.value_or(at::Tensor());
  if (other.defined()) {
    keys = check_states(other, "key", tokens, head_size, device);
    kCheck.disjoint(query, "query", other, "key");
    kCheck.disjoint(other, "key", positions, "positions");
    kCheck.disjoint(other, "key", cos_sin_cache, "cos_sin_cache");
  }
  kCheck.disjoint(query, "query", positions, "positions");
  kCheck.disjoint(query, "query", cos_sin_cache, "cos_sin_cache");

  const kernels::RotaryArgs args = {
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
  const int64_t max_position = cos_sin_cache.size(0);
  const int64_t token_bytes = (queries.heads * query.element_size() +
                               (other.defined() ? keys.heads * other.element_size() : 0)) *
                              rotary_dim;
  const auto kernel = kernels::active_table().rotary_embedding;
  const auto body = [=] {
    // Before anything is written, so that a bad position leaves query and key as they were.
    check_positions(args, tokens, max_position);
    for_ranges(device, tokens, grain_of(token_bytes),
               [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  };
  if (other.defined()) {
    launch(kCheck.op(), device, {positions, cos_sin_cache}, {query, other}, body);
  } else {
    launch(kCheck.op(), device, {positions, cos_sin_cache}, {query}, body);
  }
}

ANVIL_OPS(m) { m.impl("rotary_embedding", &rotary_embedding); }

}  // namespace
}  // namespace anvil::ops
