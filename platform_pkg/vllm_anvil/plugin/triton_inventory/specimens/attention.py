# SPDX-License-Identifier: Apache-2.0
"""Attention: unified, decoding, sparse and latent, caches and their quantisation."""

from __future__ import annotations

from vllm_anvil.plugin.triton_inventory.specimens.area import Area, arguments

_OPS = "v1.attention.ops."
_ROCM = f"{_OPS}rocm_aiter_mla_sparse:"
_SPARSE_DECODE = arguments(
    {"*u8": "main_cache_ptr extra_cache_ptr"}, NOPE_DIM=448, NOPE_BLOCK=512, ROPE_DIM=64
)
# A decoder's attention on a cache of the same type, with nothing special.
_PLAIN = arguments(
    USE_ALIBI_SLOPES=False, USE_QQ_BIAS=False, USE_SINKS=False, USE_FP8=False, USE_R_SWA=False,
    SLIDING_WINDOW=0, alibi_slopes_ptr=None, qq_bias_ptr=None, sink_ptr=None, out_scale=None,
    q_scale=None, per_seq_causal_ptr=None, mm_prefix_range_ptr=None, rswa_prefix_lens_ptr=None,
    k_scale_cache_ptr=None, v_scale_cache_ptr=None,
)  # fmt: skip
# Keys in fp8 with values of 4 bits, as the turboquant presets have them.
_TURBOQUANT = arguments(
    {"*u8": "KV_cache_ptr", "*u16": "KV_cache_u16_ptr"},
    KEY_FP8=True, FP8_E4B15=False, MSE_BITS=4, MSE_BYTES=64, KPS=128, VQB=4, VAL_DATA_BYTES=64,
    N_CENTROIDS=16, BLOCK_D=128, BLOCK_VAL=64, BLOCK_GRP=64,
    KEY_DATA_BYTES=128, META_REGION_OFFSET=4096, NUM_SOA_FIELDS=2, SOA_V_SCALE=0, SOA_V_ZERO=1,
)  # fmt: skip
_ULTRAQUANT = arguments(
    {"*u8": "KV_cache_ptr"},
    GROUP_SIZE_C=32, N_GROUPS_C=4, K_SCALES_OFFSET=64, V_CODES_OFFSET=68, V_SCALES_OFFSET=132,
    UE8M0_BIAS_C=127, LOG2_D=7, CONST_TABLES=0,
)  # fmt: skip

AREA = Area(
    name="attention",
    modules=("v1.attention", "v1.pool"),
    arguments=(
        (r".*indptr(_ptr)?|.*(left|right)_visible_ptr|topk_ptr|slots|int_ws", "*i32"),
        (r"[kv]_scale_cache_ptr|Centroids_ptr|Pair_lut_ptr|PiT_ptr|pit_ptr|sinks?_ptr", "*fp32"),
        (r"(k|v|q|out)_scale", "*fp32"),
        (r"softcap", "fp32"),
        (r"NUM_SEGMENTS_PER_SEQ", 16),
        (r"Midpoints_ptr", "*fp32"),
        (r"SortedToBits_ptr", "*i32"),
        (r"per_seq_causal_ptr", "*i1"),
        (r"mm_prefix_range_ptr|rswa_prefix_lens_ptr|query_start_len_ptr", "*i32"),
        (r"num_queries_per_kv|kv_group_num|KV_GROUP_SIZE", 4),
        (r"KV_LORA_RANK|R", 512),
        (r"LOGE2", 0.6931471805599453),
        (r"H_PER_RANK", 8),
        (r"stride_[kv]_cache_3", 1),
        (r"KV_QUANT_MODE|R_SWA_WINDOW", 0),
        (r"USE_PER_SEQ_CAUSAL|USE_TD_QO", False),
    ),
    kernels={
        f"{_OPS}triton_unified_attention:kernel_unified_attention": (
            _PLAIN,
            _PLAIN
            | arguments({"*fp32": "sink_ptr"}, IS_3D=True, SLIDING_WINDOW=128, USE_SINKS=True),
            _PLAIN
            | arguments(
                {"*fp8e4nv": "key_cache_ptr value_cache_ptr"}, USE_SOFTCAP=True, KV_QUANT_MODE=1
            ),
        ),
        f"{_OPS}triton_unified_attention:reduce_segments": arguments(
            out_scale_inv=None, USE_FP8=False
        ),
        f"{_OPS}triton_reshape_and_cache_flash:reshape_and_cache_kernel_flash": (
            arguments(FP8_KV_CACHE=False, dim_stride_v=1),
            arguments(
                {"*fp8e4nv": "key_cache_ptr value_cache_ptr"}, FP8_KV_CACHE=True, dim_stride_v=1
            ),
        ),
        f"{_OPS}triton_reshape_and_cache_flash:reshape_and_cache_kernel_flash_diffkv": arguments(
            FP8_KV_CACHE=False
        ),
        f"{_OPS}triton_reshape_and_cache_flash:_reshape_cache_per_token_head": arguments(
            {"*fp8e4nv": "key_cache_ptr value_cache_ptr"}, QUANT_MIN=-448.0
        ),
        f"{_OPS}dcp:_dcp_a2a_pack_send_kernel": arguments(
            {"*bf16": "send_ptr"}, N=2, LSE_PACK_DIM=2
        ),
        f"{_OPS}int4_per_token_head:_attn_packed": arguments(
            {"*u8": "key_cache_ptr value_cache_ptr"}, PACKED_HEAD_PADDED=64, PACKING_FACTOR=2,
        ),
        f"{_ROCM}_mxfp8_wo_a_bmm_kernel": arguments(
            {"*fp8e4nv": "a_ptr w_ptr", "*u8": "as_ptr ws_ptr"}
        ),
        f"{_ROCM}_sparse_attn_decode_gfx950_partial_kernel": _SPARSE_DECODE,
        f"{_ROCM}_sparse_attn_decode_partial_kernel": _SPARSE_DECODE,
        f"{_ROCM}_sparse_attn_decode_ragged_kernel": _SPARSE_DECODE,
        f"{_ROCM}_sparse_attn_decode_reduce_kernel": arguments(COMB_DIM=512, NOPE=448),
        f"{_ROCM}_sparse_attn_prefill_ragged_kernel": arguments(OUT_DV=128),
        f"{_OPS}triton_decode_attention:_fwd_grouped_kernel_stage1": (
            arguments(BLOCK_DMODEL=128, BLOCK_DPE=0, BLOCK_DV=128, Lk=128, Lv=128, IS_MLA=False,
                      kv_group_num=4, q_head_num=32),
            arguments(BLOCK_DMODEL=512, BLOCK_DPE=64, BLOCK_DV=512, Lk=576, Lv=512, IS_MLA=True,
                      kv_group_num=16, q_head_num=16),
        ),
        f"{_OPS}triton_turboquant_decode:_tq_decode_stage1": _TURBOQUANT,
        f"{_OPS}triton_turboquant_decode:_tq_full_dequant_kv": _TURBOQUANT,
        f"{_OPS}triton_turboquant_store:_tq_fused_store_fp8": _TURBOQUANT,
        f"{_OPS}turboquant_soa.triton_turboquant_decode:_tq_decode_stage1": _TURBOQUANT,
        f"{_OPS}turboquant_soa.triton_turboquant_decode:_tq_full_dequant_kv": _TURBOQUANT,
        f"{_OPS}turboquant_soa.triton_turboquant_store:_tq_fused_store_fp8": _TURBOQUANT,
        f"{_OPS}turboquant_soa.triton_turboquant_unified_attention:"
        "kernel_tq_unified_attention_2d": _TURBOQUANT,
        f"{_OPS}turboquant_soa.triton_turboquant_unified_attention:"
        "kernel_tq_unified_attention_3d": _TURBOQUANT,
        f"{_OPS}ultraquant.triton_dequant:_ultraquant_full_dequant_kv": _ULTRAQUANT,
        f"{_OPS}ultraquant.triton_store:_ultraquant_store_kernel": _ULTRAQUANT,
        f"{_OPS}ultraquant.triton_unified_attention:"
        "kernel_ultraquant_unified_attention_2d": _ULTRAQUANT,
        f"{_OPS}ultraquant.triton_unified_attention:"
        "kernel_ultraquant_unified_attention_3d": _ULTRAQUANT,
        f"{_OPS}flydsl_ultraquant_decode:_fused_q_rot_haircut": arguments({"*fp32": "pit_ptr"}),
        f"{_OPS}xpu_mla_sparse:_bf16_mla_sparse_kernel": arguments(
            BLOCK_DMODEL=512, index_topk=2048
        ),
    },
)  # fmt: skip
