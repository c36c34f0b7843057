# SPDX-License-Identifier: Apache-2.0
"""Other layers: norms, rotary embeddings, activations, batch-invariant products."""

from __future__ import annotations

from vllm_anvil.plugin.triton_inventory.specimens.area import Area, Dtype, arguments

_SPARSE_LOGITS = "model_executor.kernels.attention.dsa.sparse_mqa_logits:"

AREA = Area(
    name="layers",
    modules=("",),
    arguments=((r"INPUT_DTYPE", Dtype("bfloat16")),),
    kernels={
        f"{_SPARSE_LOGITS}_expand_candidates_kernel": arguments(
            {"*i32": "cand_ptr ks_ptr ke_ptr si_ptr end_ptr"}
        ),
        f"{_SPARSE_LOGITS}_sparse_topk_remap_kernel": arguments(
            {"*i32": "col_ptr si_ptr ks_ptr out_ptr"}
        ),
        "model_executor.layers.attention.sparse_mla_attention:_scatter_topk_kernel": (
            _TOPK_MASK := arguments({"*i32": "mask_ptr topk_ptr"}, num_words=32, BLOCK_WORDS=32)
        ),
        "model_executor.layers.attention.sparse_mla_attention:"
        "_scatter_topk_single_req_kernel": _TOPK_MASK,
        "model_executor.layers.fused_qk_norm_rope:_fused_qk_rmsnorm_rope_gate_kernel": arguments(
            norm_beta=0.0, HAS_MROPE=False
        ),
    },
)
