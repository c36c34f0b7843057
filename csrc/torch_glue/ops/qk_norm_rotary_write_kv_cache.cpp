// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <optional>

#include "dispatch.h"
#include "ops/launch.h"
#include "ops/rotary.h"
#include "ops/rows.h"
#include "rotary/qk_norm_rotary_write_kv_cache_args.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::qk_norm_rotary_write_kv_cache");

// [num_blocks, block_size, heads, head_size] of one side.
kernels::PagedStates paged_states(const at::Tensor& cache, const char* name, int64_t heads,
                                  const char* states_name, c10::Device device) {
  const kernels::ElementType type = kCheck.float_type(cache, name);
  TORCH_CHECK_VALUE(cache.size(2) == heads, kCheck.op(), ": ", states_name, " has ", heads,
                    " heads, but ", name, " has shape ", cache.sizes());
  kCheck.last_dim_contiguous(cache, name);
  kCheck.device(cache, name, device);
  kCheck.writable(cache, name);
  return {
      .data = cache.mutable_data_ptr(),
      .type = type,
      .block_stride = cache.stride(0),
      .token_stride = cache.stride(1),
      .head_stride = cache.stride(2),
  };
}

// The weight without gaps, or an undefined tensor.
at::Tensor norm_weight(const std::optional<at::Tensor>& weight, const char* name, int64_t size,
                       c10::Device device) {
  if (!weight.has_value() || !weight->defined()) return {};
  kCheck.float_type(*weight, name);
  TORCH_CHECK_VALUE(weight->dim() == 1 && weight->size(0) == size, kCheck.op(), ": ", name,
                    " must have shape [", size, "], the head size, but has ", weight->sizes());
  kCheck.device(*weight, name, device);
  return weight->contiguous();
}

void qk_norm_rotary_write_kv_cache(const at::Tensor& positions, at::Tensor& query, at::Tensor& key,
                                   const at::Tensor& value, at::Tensor& key_cache,
                                   at::Tensor& value_cache, const at::Tensor& slot_mapping,
                                   const at::Tensor& cos_sin_cache, bool is_neox,
                                   const std::optional<at::Tensor>& query_weight,
                                   const std::optional<at::Tensor>& key_weight,
                                   std::optional<double> epsilon, double weight_offset,
                                   at::IntArrayRef mrope_section, bool mrope_interleaved) {
  const c10::Device device = query.device();
  kCheck.dim(key_cache, "key_cache", 4);
  kCheck.dim(value_cache, "value_cache", 4);
  const int64_t head_size = key_cache.size(3), value_head_size = value_cache.size(3);
  kCheck.at_least(value_head_size, "the head size of value_cache", 1);
  const kernels::RotaryArgs rotary =
      rotary_args(kCheck, positions, query, key, head_size, cos_sin_cache, is_neox, mrope_section,
                  mrope_interleaved);
  kCheck.index_array(slot_mapping, "slot_mapping", at::kLong);
  kCheck.device(slot_mapping, "slot_mapping", device);
  const int64_t tokens = positions.size(-1), slots = slot_mapping.numel();
  TORCH_CHECK_VALUE(slots <= tokens, kCheck.op(), ": slot_mapping has ", slots,
                    " slots, but positions has ", tokens, " tokens");
  const kernels::HeadStates values = head_states(kCheck, value, "value", value_head_size, device);
  kCheck.at_least(value.size(0), "the number of tokens of value", slots);
  TORCH_CHECK_VALUE(
      value_cache.size(0) == key_cache.size(0) && value_cache.size(1) == key_cache.size(1),
      kCheck.op(), ": key_cache has shape ", key_cache.sizes(), " and value_cache ",
      value_cache.sizes(), ", but blocks and block size must agree");
  TORCH_CHECK_VALUE(epsilon.has_value() || !(query_weight.has_value() || key_weight.has_value()),
                    kCheck.op(),
                    ": there is a weight but no epsilon; without an epsilon nothing "
                    "is normed");
  const at::Tensor query_weights = norm_weight(query_weight, "query_weight", head_size, device);
  const at::Tensor key_weights = norm_weight(key_weight, "key_weight", head_size, device);
  const kernels::PagedStates keys_out =
      paged_states(key_cache, "key_cache", rotary.key.heads, "key", device);
  const kernels::PagedStates values_out =
      paged_states(value_cache, "value_cache", values.heads, "value", device);
  kCheck.disjoint(query, "query", value, "value");
  kCheck.disjoint(key, "key", value, "value");
  kCheck.disjoint(key_cache, "key_cache", value_cache, "value_cache");
  const at::Tensor* const caches[] = {&key_cache, &value_cache};
  const char* const names[] = {"key_cache", "value_cache"};
  for (int side = 0; side < 2; ++side) {
    kCheck.disjoint(*caches[side], names[side], query, "query");
    kCheck.disjoint(*caches[side], names[side], key, "key");
    kCheck.disjoint(*caches[side], names[side], value, "value");
  }

  const auto norm = [&](const at::Tensor& weight) -> kernels::RmsNormParameters {
    return {.weight = parameters_of(weight),
            .size = head_size,
            .variance_size = head_size,
            .epsilon = epsilon.value_or(0.0),
            .weight_offset = static_cast<float>(weight_offset)};
  };
  const kernels::QkNormRotaryWriteKvCacheArgs args = {
      .rotary = rotary,
      .normed = epsilon.has_value(),
      .query_norm = norm(query_weights),
      .key_norm = norm(key_weights),
      .value = values,
      .head_size = head_size,
      .value_head_size = value_head_size,
      .key_cache = keys_out,
      .value_cache = values_out,
      .slot_mapping = slot_mapping.const_data_ptr<int64_t>(),
      .slots = slots,
      .block_size = key_cache.size(1),
  };
  const int64_t token_bytes = rotary.query.heads * head_size * query.element_size() +
                              2 * rotary.key.heads * head_size * key.element_size() +
                              2 * values.heads * value_head_size * value.element_size();
  const int64_t max_position = cos_sin_cache.size(0);
  const int64_t num_slots = key_cache.size(0) * key_cache.size(1);
  const auto kernel = kernels::active_table().qk_norm_rotary_write_kv_cache;
  launch(kCheck.op(), device,
         {positions, value, slot_mapping, cos_sin_cache, query_weights, key_weights},
         {query, key, key_cache, value_cache}, [=] {
           // Before anything is written, so that a bad position or slot leaves all as it was.
           check_positions(kCheck, args.rotary, tokens, max_position);
           kCheck.in_range(args.slot_mapping, slots, 1, std::numeric_limits<int64_t>::min(),
                           num_slots, "slot_mapping", 0, "num_blocks * block_size");
           for_ranges(device, tokens, grain_of(token_bytes),
                      [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
         });
}

ANVIL_OPS(m) { m.impl("qk_norm_rotary_write_kv_cache", &qk_norm_rotary_write_kv_cache); }

}  // namespace
}  // namespace anvil::ops
