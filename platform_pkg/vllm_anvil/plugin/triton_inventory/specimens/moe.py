# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: routing, grouped matrix products, their permutation and quantisation."""

from __future__ import annotations

from vllm_anvil.plugin.triton_inventory.specimens.area import Area, Dtype, arguments

_LAYERS = "model_executor.layers.fused_moe."
_EXPERTS = f"{_LAYERS}experts."
_FP8 = arguments(
    {"*fp8e4nv": "a_ptr b_ptr", "*fp32": "a_scale_ptr b_scale_ptr"}, group_n=128, group_k=128
)

AREA = Area(
    name="moe",
    modules=("model_executor.layers.fused_moe",),
    arguments=(
        (r"sorted_token_ids_ptr|expert_ids_ptr|topk_ids(_ptr)?|recv_topk", "*i32"),
        (r"topk_weights(_ptr)?", "*fp32"),
        (r"compute_type", Dtype("bfloat16")),
        (r"GROUP_SIZE_M", 8),
        (r"SPLIT_K", 1),
        (r"A_DIV", 8),
        (r"MUL_ROUTED_WEIGHT|per_act_token_quant|naive_block_assignment", False),
    ),
    kernels={
        f"{_LAYERS}fused_moe:fused_moe_kernel": (
            arguments(a_scale_ptr=None, b_scale_ptr=None, group_n=0, group_k=0, HAS_BIAS=False,
                      b_bias_ptr=None, top_k=8),
            _FP8 | arguments(use_fp8_w8a8=True, HAS_BIAS=False, b_bias_ptr=None, top_k=8),
        ),
        f"{_LAYERS}fused_moe:fused_moe_kernel_gptq_awq": arguments(
            {"*u8": "b_ptr b_zp_ptr", "*bf16": "b_scale_ptr"},
            use_int4_w4a16=True, has_zp=True, block_k_diviable=True, group_size=128,
        ),
        f"{_LAYERS}router.base_router:_eplb_map_and_record_i32_kernel": arguments(
            {
                "*i32": "logical_to_physical_ptr out_ids_ptr out_ptr num_unpadded_tokens_ptr",
                "*i1": "record_enabled_ptr",
            }
        ),
        f"{_EXPERTS}fused_batched_moe:batched_triton_kernel": arguments(
            a_scale_ptr=None, b_scale_ptr=None, b_zp_ptr=None, group_n=0, group_k=0
        ),
        f"{_EXPERTS}mxfp8_native_moe:_mxfp8_grouped_gemm_kernel": arguments(
            {"*fp8e4nv": "a_ptr b_ptr", "*u8": "a_scale_ptr b_scale_ptr"}
        ),
        f"{_EXPERTS}nvfp4_emulation_moe:fused_moe_nvfp4_emulation_kernel": arguments(
            {"*u8": "b_ptr", "*fp8e4nv": "b_scale_ptr"}, block_k_diviable=True
        ),
    },
)  # fmt: skip
