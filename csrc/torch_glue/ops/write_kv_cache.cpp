// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <optional>

#include "dispatch.h"
#include "ops/checks.h"
#include "ops/launch.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::write_kv_cache");

bool is_float(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

// Whether elements are converted, rather than copied. Refuses what is neither.
bool check_conversion(const at::Tensor& source, const char* source_name, const at::Tensor& cache,
                      const char* cache_name, double scale, const char* scale_name) {
  const float factor = static_cast<float>(scale);
  TORCH_CHECK_VALUE(std::isfinite(factor) && factor > 0, kCheck.op(), ": ", scale_name,
                    " must be a positive float32, but is ", scale);
  const bool same = source.scalar_type() == cache.scalar_type();
  if (same && factor == 1) {
    TORCH_CHECK_TYPE(source.element_size() <= 4, kCheck.op(), ": ", source_name,
                     " must have elements of 1, 2 or 4 bytes, but is ", source.scalar_type());
    return false;
  }
  TORCH_CHECK_TYPE(is_float(source) || !same, kCheck.op(), ": ", scale_name, " is ", scale,
                   ", but ", source_name, " is ", source.scalar_type(),
                   " like the cache, whose bytes are copied as they are: give numbers in float32, "
                   "bfloat16 or float16, or a scale of 1");
  TORCH_CHECK_TYPE(is_float(source) && cache_type(cache), kCheck.op(), ": ", cache_name, " is ",
                   cache.scalar_type(), " but ", source_name, " is ", source.scalar_type(),
                   "; float32, bfloat16 and float16 are converted, to these, float8_e4m3fn, "
                   "float8_e5m2 and int8: convert first, or view both as one type");
  return true;
}

// One side, keys or values: source [num_tokens, num_heads, head_size] into
// cache [num_blocks, block_size, num_heads, head_size].
void check_side(const at::Tensor& source, const char* source_name, const at::Tensor& cache,
                const char* cache_name, c10::Device device) {
  kCheck.dim(source, source_name, 3);
  kCheck.dim(cache, cache_name, 4);
  TORCH_CHECK_VALUE(source.size(1) == cache.size(2) && source.size(2) == cache.size(3), kCheck.op(),
                    ": ", source_name, " has shape ", source.sizes(), " and ", cache_name, " ",
                    cache.sizes(), ", but heads and head size must agree");
  kCheck.last_dim_contiguous(source, source_name);
  kCheck.last_dim_contiguous(cache, cache_name);
  kCheck.device(source, source_name, device);
  kCheck.device(cache, cache_name, device);
  kCheck.writable(cache, cache_name);
  kCheck.disjoint(cache, cache_name, source, source_name);
}

kernels::CacheScatter scatter_of(const at::Tensor& source, const at::Tensor& cache, bool converts,
                                 double scale) {
  const int64_t from = source.element_size(), to = cache.element_size();
  const int64_t heads = source.size(1), head_size = source.size(2);
  const bool one_run =
      heads <= 1 || (source.stride(1) == head_size && cache.stride(2) == head_size);
  const int64_t run_elements = (one_run ? heads : 1) * head_size;
  return {
      .source = static_cast<const char*>(source.const_data_ptr()),
      .cache = static_cast<char*>(cache.mutable_data_ptr()),
      .source_token_stride = source.stride(0) * from,
      .source_run_stride = source.stride(1) * from,
      .cache_block_stride = cache.stride(0) * to,
      .cache_token_stride = cache.stride(1) * to,
      .cache_run_stride = cache.stride(2) * to,
      .runs = one_run ? 1 : heads,
      .run_bytes = run_elements * from,
      .converts = converts,
      .run_elements = run_elements,
      .source_type = element_type(source),
      .cache_type = cache_type(cache).value_or(kernels::CacheType::kInt8),
      .scale = static_cast<float>(scale),
  };
}

void write_kv_cache(const at::Tensor& key, const at::Tensor& value, at::Tensor& key_cache,
                    at::Tensor& value_cache, const at::Tensor& slot_mapping, double k_scale,
                    double v_scale) {
  const c10::Device device = key_cache.device();
  check_side(key, "key", key_cache, "key_cache", device);
  check_side(value, "value", value_cache, "value_cache", device);
  const bool converts_keys =
      check_conversion(key, "key", key_cache, "key_cache", k_scale, "k_scale");
  const bool converts_values =
      check_conversion(value, "value", value_cache, "value_cache", v_scale, "v_scale");
  kCheck.disjoint(key_cache, "key_cache", value_cache, "value_cache");
  TORCH_CHECK_VALUE(
      value_cache.size(0) == key_cache.size(0) && value_cache.size(1) == key_cache.size(1),
      kCheck.op(), ": key_cache has shape ", key_cache.sizes(), " and value_cache ",
      value_cache.sizes(), ", but blocks and block size must agree");
  kCheck.index_array(slot_mapping, "slot_mapping", at::kLong);
  kCheck.device(slot_mapping, "slot_mapping", device);
  const int64_t num_tokens = slot_mapping.numel(), block_size = key_cache.size(1);
  kCheck.at_least(key.size(0), "the number of tokens of key", num_tokens);
  kCheck.at_least(value.size(0), "the number of tokens of value", num_tokens);

  const kernels::WriteKvCacheArgs args = {
      .key = scatter_of(key, key_cache, converts_keys, k_scale),
      .value = scatter_of(value, value_cache, converts_values, v_scale),
      .slot_mapping = slot_mapping.const_data_ptr<int64_t>(),
      .block_size = block_size,
  };
  const int64_t token_bytes =
      args.key.runs * args.key.run_bytes + args.value.runs * args.value.run_bytes;
  const int64_t num_slots = key_cache.size(0) * block_size;
  const auto kernel = kernels::active_table().write_kv_cache;
  launch(kCheck.op(), device, {key, value, slot_mapping}, {key_cache, value_cache}, [=] {
    // Before anything is written, so that a bad slot leaves the cache as it was.
    kCheck.in_range(args.slot_mapping, num_tokens, 1, std::numeric_limits<int64_t>::min(),
                    num_slots, "slot_mapping", 0, "num_blocks * block_size");
    for_ranges(device, num_tokens, grain_of(token_bytes),
               [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  });
}

ANVIL_OPS(m) { m.impl("write_kv_cache", &write_kv_cache); }

}  // namespace
}  // namespace anvil::ops
