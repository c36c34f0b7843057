// SPDX-License-Identifier: Apache-2.0
// Every op of torch.ops.anvil and what it mutates. Kernels register in the file that is named after
// the op.
#include <torch/library.h>

#include <vector>

TORCH_LIBRARY(anvil, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};

  // norm: see vllm_anvil/ops/norm.py for shapes and meaning; likewise below
  m.def(
      "rms_norm(Tensor x, Tensor? weight, float epsilon, int? variance_size=None, "
      "float weight_offset=0.0) -> Tensor",
      tags);
  m.def(
      "fused_add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float epsilon, "
      "int? variance_size=None, float weight_offset=0.0) -> (Tensor, Tensor)",
      tags);
  m.def(
      "fused_add_rms_norm_(Tensor(a!) x, Tensor(b!) residual, Tensor? weight, float epsilon, "
      "int? variance_size=None, float weight_offset=0.0) -> ()",
      tags);
  m.def("layer_norm(Tensor x, Tensor? weight, Tensor? bias, float epsilon) -> Tensor", tags);

  // activation
  m.def("silu_and_mul(Tensor x) -> Tensor", tags);
  m.def("gelu_and_mul(Tensor x, str approximate=\"none\") -> Tensor", tags);

  // softmax
  m.def("softmax(Tensor x) -> Tensor", tags);
  m.def("log_softmax(Tensor x) -> Tensor", tags);

  // rotary
  m.def(
      "rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!)? key, int head_size, "
      "Tensor cos_sin_cache, bool is_neox, int[] mrope_section=[], "
      "bool mrope_interleaved=False) -> ()",
      tags);
  m.def(
      "qk_norm_rotary_write_kv_cache(Tensor positions, Tensor(a!) query, Tensor(b!) key, "
      "Tensor value, Tensor(c!) key_cache, Tensor(d!) value_cache, Tensor slot_mapping, "
      "Tensor cos_sin_cache, bool is_neox, Tensor? query_weight=None, Tensor? key_weight=None, "
      "float? epsilon=None, float weight_offset=0.0, int[] mrope_section=[], "
      "bool mrope_interleaved=False) -> ()",
      tags);

  // embedding
  m.def("embedding(Tensor ids, Tensor weight, ScalarType? dtype=None) -> Tensor", tags);
  m.def(
      "packed_embedding(Tensor ids, Tensor packed, int rows, int hidden, "
      "ScalarType? dtype=None) -> Tensor",
      tags);

  // attention
  m.def(
      "paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, "
      "Tensor query_start_loc, Tensor seq_lens, Tensor(a!) output, float scale, "
      "int max_query_len, int max_seq_len, bool causal=True, Tensor? causal_per_request=None, "
      "int? sliding_window=None, float? logits_soft_cap=None, Tensor? alibi_slopes=None, "
      "Tensor? sinks=None, float k_scale=1.0, float v_scale=1.0, "
      "bool batch_invariant=False) -> ()",
      tags);

  // attention_states
  m.def(
      "merge_attn_states(Tensor prefix_output, Tensor prefix_lse, Tensor suffix_output, "
      "Tensor suffix_lse) -> (Tensor, Tensor)",
      tags);

  // cache
  m.def(
      "write_kv_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
      "Tensor slot_mapping, float k_scale=1.0, float v_scale=1.0) -> ()",
      tags);
  m.def("copy_blocks(Tensor(a!) cache, Tensor block_pairs) -> ()", tags);
  m.def("swap_blocks(Tensor src, Tensor(a!) dst, Tensor block_pairs) -> ()", tags);
  m.def(
      "check_block_table(Tensor block_table, Tensor query_start_loc, Tensor seq_lens, "
      "int block_size, int num_blocks) -> ()",
      tags);

  // gemm
  m.def("linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor", tags);
  m.def(
      "packed_linear(Tensor input, Tensor packed, int columns, Tensor? bias=None, "
      "ScalarType? dtype=None, ScalarType? input_dtype=None, Tensor? rows_in_use=None, "
      "bool keep_remainders=False) -> Tensor",
      tags);
  m.def("pack_linear(Tensor weight, int? unit=None) -> Tensor", tags);
  m.def("unpack_linear(Tensor packed, int columns, int depth) -> Tensor", tags);

  // experts
  m.def(
      "choose_experts(Tensor logits, Tensor(a!) weights, Tensor(b!) ids, str scoring, "
      "bool renormalize, Tensor? bias=None, float scale=1.0, Tensor? skip=None) -> ()",
      tags);
  m.def(
      "mixture_of_experts(Tensor input, Tensor gate_up, Tensor down, Tensor weights, Tensor ids, "
      "int intermediate, str activation=\"silu\", Tensor? expert_map=None, "
      "ScalarType? input_dtype=None, Tensor? rows_in_use=None, bool keep_remainders=False) -> "
      "Tensor",
      tags);

  // lora
  m.def(
      "lora_shrink(Tensor input, Tensor[] a, Tensor order, Tensor starts, Tensor(a!) shrunk, "
      "float scale=1.0, Tensor? ranks=None) -> ()",
      tags);
  m.def(
      "lora_expand(Tensor shrunk, Tensor[] b, Tensor order, Tensor starts, Tensor(a!) output, "
      "int offset=0, bool add=True, Tensor? ranks=None) -> ()",
      tags);

  // sampling
  m.def("topk_topp(Tensor(a!) logits, Tensor? k, Tensor? p, float mask_value) -> ()", tags);

  // ceiling
  m.def("ceiling_read(Tensor buffer) -> Tensor", tags);
  m.def("ceiling_arithmetic(Tensor seed, int steps) -> Tensor", tags);
}
