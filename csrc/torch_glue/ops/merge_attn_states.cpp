// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>

#include <tuple>

#include "dispatch.h"
#include "ops/checks.h"
#include "ops/launch.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::merge_attn_states");

// Attention over one part of the keys: output [tokens, heads, head_size], lse [heads, tokens].
kernels::AttentionPart check_part(const at::Tensor& output, const char* output_name,
                                  const at::Tensor& lse, const char* lse_name,
                                  const at::Tensor& like) {
  kCheck.float_type(output, output_name);
  kCheck.dtype(output, output_name, like.scalar_type());
  kCheck.dim(output, output_name, 3);
  TORCH_CHECK_VALUE(output.sizes() == like.sizes(), kCheck.op(), ": ", output_name, " has shape ",
                    output.sizes(), ", but prefix_output has ", like.sizes());
  kCheck.last_dim_contiguous(output, output_name);
  kCheck.device(output, output_name, like.device());
  kCheck.dtype(lse, lse_name, at::kFloat);
  kCheck.dim(lse, lse_name, 2);
  TORCH_CHECK_VALUE(lse.size(0) == output.size(1) && lse.size(1) == output.size(0), kCheck.op(),
                    ": ", lse_name, " must have shape [heads, tokens], which is [", output.size(1),
                    ", ", output.size(0), "], but has ", lse.sizes());
  kCheck.device(lse, lse_name, like.device());
  return {
      .output = output.const_data_ptr(),
      .token_stride = output.stride(0),
      .head_stride = output.stride(1),
      .lse = lse.const_data_ptr<float>(),
      .lse_head_stride = lse.stride(0),
      .lse_token_stride = lse.stride(1),
  };
}

std::tuple<at::Tensor, at::Tensor> merge_attn_states(const at::Tensor& prefix_output,
                                                     const at::Tensor& prefix_lse,
                                                     const at::Tensor& suffix_output,
                                                     const at::Tensor& suffix_lse) {
  const c10::Device device = prefix_output.device();
  const kernels::AttentionPart prefix =
      check_part(prefix_output, "prefix_output", prefix_lse, "prefix_lse", prefix_output);
  const kernels::AttentionPart suffix =
      check_part(suffix_output, "suffix_output", suffix_lse, "suffix_lse", prefix_output);
  at::Tensor output = at::empty(prefix_output.sizes(), prefix_output.options());
  at::Tensor lse = at::empty(prefix_lse.sizes(), prefix_lse.options());
  const kernels::MergeAttnStatesArgs args = {
      .prefix = prefix,
      .suffix = suffix,
      .type = kCheck.float_type(output, "prefix_output"),
      .output = output.mutable_data_ptr(),
      .lse = lse.mutable_data_ptr<float>(),
      .tokens = output.size(0),
      .heads = output.size(1),
      .head_size = output.size(2),
  };
  const int64_t token_bytes = args.heads * args.head_size * output.element_size() * 3;
  const auto kernel = kernels::active_table().merge_attn_states;
  launch(kCheck.op(), device, {prefix_output, prefix_lse, suffix_output, suffix_lse}, {output, lse},
         [=] {
           for_ranges(device, args.tokens, grain_of(token_bytes),
                      [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
         });
  return {output, lse};
}

ANVIL_OPS(m) { m.impl("merge_attn_states", &merge_attn_states); }

}  // namespace
}  // namespace anvil::ops
