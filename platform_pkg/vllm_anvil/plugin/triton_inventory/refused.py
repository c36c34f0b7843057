# SPDX-License-Identifier: Apache-2.0
"""Kernels that are not compiled, each with what it asks for; tests see that no reason is stale."""

from __future__ import annotations

_GPT_OSS = "vllm.model_executor.layers.fused_moe.experts.gpt_oss_triton_kernels_moe:"
_TRITON_KERNELS = "calls `{}` of the package triton_kernels, which vLLM does not bring"

_FP4 = (
    "inline PTX `cvt.rn.satfinite.e2m1x2.f32` (pairs of float32 to FP4), which NVIDIA's GPUs have "
    "from Blackwell on"
)
_DEEPSEEK_V4 = "vllm.models.deepseek_v4.common.ops."

# By kernel.
REFUSED: dict[str, str] = {
    f"{_GPT_OSS}_patch_legacy_routing_for_nonpow2_topk.<locals>"
    "._combined_routing_compute_pow2": _TRITON_KERNELS.format("_expt_data_compute"),
    f"{_GPT_OSS}_patch_make_bitmatrix_metadata.<locals>._stage2_pow2": _TRITON_KERNELS.format(
        "_keyed_add"
    ),
    f"{_DEEPSEEK_V4}fused_compress_quant_cache:"
    "_fused_kv_compress_norm_rope_insert_indexer_mxfp4_attn": _FP4,
    f"{_DEEPSEEK_V4}fused_indexer_q:FusedIndexerQRopeMxFp4TritonKernel.kernel": _FP4,
    "vllm.models.deepseek_v41.common.ops.fused_compress_quant_cache:"
    "_rope_quant_insert_nvfp4_kernel": _FP4,
    "vllm.model_executor.models.deepencoder:_deepencoder_rel_pos_attention_kernel": (
        "reads the global `LOG2E`, which is no `tl.constexpr`: Triton's front end takes it nowhere"
    ),
    "vllm.models.kimi_k3.amd.ops.third_party.kda.chunk:kda_gate_fwd_kernel": (
        "makes a tensor descriptor whose last stride is a variable (`stride_col = 1`): the front "
        "end of Triton 3.9 takes only a constant"
    ),
}
