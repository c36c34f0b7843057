// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <optional>

#include "attention/attention_args.h"
#include "dispatch.h"
#include "ops/block_table.h"
#include "ops/launch.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::paged_attention");

// Keys after which a range is cut where the result must not depend on the batch: enough for the
// merging not to count, few enough for a single long request to keep many workers busy.
constexpr int64_t kFixedSplit = 512;

kernels::PagedRows paged_rows(const at::Tensor& cache, const char* name, const at::Tensor& query) {
  kCheck.dim(cache, name, 4);
  kCheck.last_dim_contiguous(cache, name);
  kCheck.device(cache, name, query.device());
  return {cache.const_data_ptr(), cache.stride(0), cache.stride(1), cache.stride(2)};
}

// A number per query head, float32.
const float* per_head(const at::Tensor& values, const char* name, const at::Tensor& query) {
  if (!values.defined()) return nullptr;
  kCheck.index_array(values, name, at::kFloat);
  kCheck.device(values, name, query.device());
  TORCH_CHECK_VALUE(values.size(0) == query.size(1), kCheck.op(), ": ", name, " must be [",
                    query.size(1), "] (one per head), got ", values.sizes());
  return values.const_data_ptr<float>();
}

const bool* per_request(const at::Tensor& causal, const at::Tensor& seq_lens) {
  if (!causal.defined()) return nullptr;
  kCheck.index_array(causal, "causal_per_request", at::kBool);
  kCheck.device(causal, "causal_per_request", seq_lens.device());
  kCheck.at_least(causal.size(0), "the number of requests of causal_per_request", seq_lens.size(0));
  return causal.const_data_ptr<bool>();
}

void check_shapes(const at::Tensor& query, const at::Tensor& key_cache,
                  const at::Tensor& value_cache, const at::Tensor& output) {
  kCheck.dim(query, "query", 3);
  kCheck.dim(output, "output", 3);
  kCheck.last_dim_contiguous(query, "query");
  kCheck.last_dim_contiguous(output, "output");
  kCheck.dtype(output, "output", query.scalar_type());
  kCheck.device(output, "output", query.device());
  TORCH_CHECK_TYPE(key_cache.scalar_type() == value_cache.scalar_type(), kCheck.op(),
                   ": key_cache is ", key_cache.scalar_type(), ", but value_cache is ",
                   value_cache.scalar_type());
  TORCH_CHECK_VALUE(
      key_cache.size(3) == query.size(2) &&
          key_cache.sizes().slice(0, 3) == value_cache.sizes().slice(0, 3),
      kCheck.op(), ": key_cache ", key_cache.sizes(), " and value_cache ", value_cache.sizes(),
      " must be [num_blocks, block_size, num_kv_heads, head_size] with the query's head_size ",
      query.size(2), " for keys");
  const int64_t kv_heads = key_cache.size(2);
  TORCH_CHECK_VALUE(kv_heads > 0 && query.size(1) % kv_heads == 0, kCheck.op(), ": ", query.size(1),
                    " query heads are no multiple of ", kv_heads, " KV heads");
  TORCH_CHECK_VALUE(output.size(0) == query.size(0) && output.size(1) == query.size(1) &&
                        output.size(2) == value_cache.size(3),
                    kCheck.op(), ": output must be [", query.size(0), ", ", query.size(1), ", ",
                    value_cache.size(3), "] [num_tokens, num_heads, value_head_size], got ",
                    output.sizes());
  kCheck.writable(output, "output");
  kCheck.disjoint(output, "output", query, "query");
  kCheck.disjoint(output, "output", key_cache, "key_cache");
  kCheck.disjoint(output, "output", value_cache, "value_cache");
}

// Each request's rows lie in the query, behind those of the one before.
void check_rows(const kernels::AttentionArgs& args) {
  int64_t least = 0;
  for (int64_t i = 0; i <= args.num_requests; ++i) {
    const int64_t start = args.query_start_loc[i];
    TORCH_CHECK_INDEX(start >= least && start <= args.num_tokens, kCheck.op(), ": query_start_loc[",
                      i, "] is ", start, "; it must be at least ", least,
                      ", where the request before begins, and at most ", args.num_tokens,
                      ", the rows of the query");
    least = start;
  }
}

void paged_attention(const at::Tensor& query, const at::Tensor& key_cache,
                     const at::Tensor& value_cache, const at::Tensor& block_table,
                     const at::Tensor& query_start_loc, const at::Tensor& seq_lens,
                     at::Tensor& output, double scale, int64_t max_query_len, int64_t max_seq_len,
                     bool causal, const std::optional<at::Tensor>& causal_per_request,
                     std::optional<int64_t> sliding_window, std::optional<double> logits_soft_cap,
                     const std::optional<at::Tensor>& alibi_slopes,
                     const std::optional<at::Tensor>& sinks, double k_scale, double v_scale,
                     bool batch_invariant) {
  const c10::Device device = query.device();
  const kernels::ElementType type = kCheck.float_type(query, "query");
  const kernels::PagedRows keys = paged_rows(key_cache, "key_cache", query);
  const kernels::PagedRows values = paged_rows(value_cache, "value_cache", query);
  check_shapes(query, key_cache, value_cache, output);
  kCheck.device(block_table, "block_table", device);
  const BlockTableCheck blocks(kCheck, block_table, query_start_loc, seq_lens, key_cache.size(1),
                               key_cache.size(0));
  const std::optional<kernels::CacheType> type_of_cache = cache_type(key_cache);
  TORCH_CHECK_TYPE(type_of_cache.has_value(), kCheck.op(),
                   ": key_cache must be float32, bfloat16, float16, float8_e4m3fn, float8_e5m2 or "
                   "int8, but is ",
                   key_cache.scalar_type());
  if (sliding_window.has_value()) kCheck.at_least(*sliding_window, "sliding_window", 1);
  TORCH_CHECK_VALUE(!logits_soft_cap.has_value() || *logits_soft_cap > 0, kCheck.op(),
                    ": logits_soft_cap must be positive, got ", logits_soft_cap.value_or(0));
  // Undefined tensors are those that were not given.
  const at::Tensor flags = causal_per_request.value_or(at::Tensor());
  const at::Tensor slopes = alibi_slopes.value_or(at::Tensor());
  const at::Tensor sink_logits = sinks.has_value() ? sinks->to(at::kFloat) : at::Tensor();

  kernels::AttentionArgs args = {
      .type = type,
      .cache_type = *type_of_cache,
      .query = query.const_data_ptr(),
      .query_token_stride = query.stride(0),
      .query_head_stride = query.stride(1),
      .output = output.mutable_data_ptr(),
      .output_token_stride = output.stride(0),
      .output_head_stride = output.stride(1),
      .keys = keys,
      .values = values,
      .block_table = blocks.args().block_table,
      .block_table_stride = blocks.args().row_stride,
      .query_start_loc = blocks.args().query_start_loc,
      .seq_lens = blocks.args().seq_lens,
      .causal_per_request = per_request(flags, seq_lens),
      .alibi_slopes = per_head(slopes, "alibi_slopes", query),
      .sinks = per_head(sink_logits, "sinks", query),
      .num_tokens = query.size(0),
      .num_requests = blocks.requests(),
      .num_heads = query.size(1),
      .num_kv_heads = key_cache.size(2),
      .head_size = query.size(2),
      .value_head_size = output.size(2),
      .block_size = key_cache.size(1),
      .scale = static_cast<float>(scale * k_scale),
      .value_scale = static_cast<float>(v_scale),
      .soft_cap = static_cast<float>(logits_soft_cap.value_or(0)),
      .window = sliding_window.value_or(0),
      .causal = causal,
      .fixed_split = batch_invariant ? kFixedSplit : 0,
      .workers = threads_of(device),
      .workspace = nullptr,
  };
  if (output.numel() == 0 || args.num_requests == 0) return;
  const kernels::KernelTable& table = kernels::active_table();
  const at::Tensor workspace =
      at::empty({table.attention_workspace_bytes(args)}, query.options().dtype(at::kByte));
  args.workspace = workspace.mutable_data_ptr();
  launch(kCheck.op(), device,
         {query, key_cache, value_cache, block_table, query_start_loc, seq_lens, flags, slopes,
          sink_logits},
         {output, workspace}, [=, &table] {
           // Before anything is written, so that a bad batch leaves the output as it was.
           check_rows(args);
           blocks.run();
           for_ranges(device, table.attention_plan(args), 1,
                      [&](int64_t begin, int64_t end) { table.attention(args, begin, end); });
         });
}

ANVIL_OPS(m) { m.impl("paged_attention", &paged_attention); }

}  // namespace
}  // namespace anvil::ops
