# SPDX-License-Identifier: Apache-2.0
"""Kernels that a family of models brings itself."""

from __future__ import annotations

from vllm_anvil.plugin.triton_inventory.specimens.area import Area, arguments
from vllm_anvil.plugin.triton_inventory.specimens.linear_attention import GATED

_QUANT_CACHE = "models.deepseek_v4.common.ops.fused_compress_quant_cache:"
_GATHER_K = "models.deepseek_v41.common.ops.cache_utils:_dequantize_and_gather_k"
_COMPRESSOR = arguments(
    {"*u8": "k_cache_ptr", "*fp32": "state_cache_ptr"}, STATE_WIDTH=1024, COMPRESS_RATIO=4,
    OVERLAP=True,
)  # fmt: skip
_SHORT_CONVOLUTION = arguments(
    C=1024, DILATION=1, KERNEL_SIZE=4, STATE_LEN=3, STATE_WIDTH=3, SPEC_QUERY_LEN=1
)
_INKLING_QKV = arguments(
    WINDOW_SIZE=4, Q_WIDTH=1024, KV_WIDTH=256, NUM_KV_HEADS=2, OFF_K=1024, OFF_V=1280
)
_TOPK_INDEX = arguments({"*fp32": "s_ptr", "*i32": "ti_ptr"}, BLOCK_SIZE_T=16)
_INKLING_GATE = arguments(G=66, R=64, K=6, S=2, BLOCK_G=128)
# A token of the FP8 cache: 448 values with scales for 64 each, and 64 values in bf16.
_FP8_TOKEN = arguments(
    {"*u8": "k_cache_ptr"}, fp8_dim=448, bf16_dim=64, scale_dim=8, quant_block=64,
    token_data_size=576, output_dim=512, n_quant_blocks=7,
)  # fmt: skip

AREA = Area(
    name="models",
    modules=("models.", "model_executor.models."),
    arguments=(
        (r".*cos_sin_cache_ptr|.*cos_sin_ptr|main_(q|k)_norm_weight_ptr|main_qkv_ptr", "*bf16"),
        (r".*indptr_ptr|(left|right)_visible_ptr|dropped_before_ptr|rows_ptr|id_ptrs", "*i32"),
        (r"loc_ptr|t_ptr|topk_ptr|sparse_(bt|ctx)_ptr|abs_pos_ptr|visible_blocks_ptr", "*i32"),
        (r"k_work_metadata_ptr|qsl_ptr|ctx_ptr", "*i32"),
        (r"num_search_steps|work_search_steps", "i32"),
        (r"previous_hidden_states_ptr|main_(q_out|gate_out|cache)_ptr", "*bf16"),
        (r".*base_addrs_ptr|.*(block|dim|token)_strides_ptr", "*i64"),
        (r"multipliers(_ptr)?|primes|sizes_ptr", "*i64"),
        (r"correction_cache_ref_ptr", "*bf16"),
        (r"ROUND_SCALE", True),
        (r"PAGE_SIZE|POOL_SIZE|KPOOL", 16),
        (r"lower_bound", "fp32"),
        (r"MODE", "decode"),
        (r"num_reqs|mamba_block_size", "i32"),
        (r"has_token_map", "i1"),
        (r"cacheable_groups_ptr", "*i1"),
        *GATED,
    ),
    kernels={
        f"{_QUANT_CACHE}_fused_kv_compress_norm_rope_insert_indexer_attn": _COMPRESSOR
        | arguments(TRITON_BLOCK_SIZE=128, QUANT_BLOCK=128, TOKEN_STRIDE=128, SCALE_DIM=4),
        f"{_QUANT_CACHE}_fused_kv_compress_norm_rope_insert_indexer_mxfp4_attn": _COMPRESSOR
        | arguments(TRITON_BLOCK_SIZE=128, QUANT_BLOCK=32, TOKEN_STRIDE=64, SCALE_DIM=4),
        f"{_QUANT_CACHE}_fused_kv_compress_norm_rope_insert_sparse_attn": _COMPRESSOR
        | arguments(
            HEAD_SIZE=512, TRITON_BLOCK_SIZE=512, QUANT_BLOCK=64, TOKEN_STRIDE=576, SCALE_DIM=8
        ),
        f"{_GATHER_K}_kernel": _FP8_TOKEN,
        f"{_GATHER_K}_one_pass_kernel": _FP8_TOKEN,
        f"{_GATHER_K}_mxfp8_kernel": arguments({"*u8": "k_cache_ptr"}),
        f"{_GATHER_K}_nvfp4_kernel": arguments({"*u8": "k_cache_ptr"}),
        "models.deepseek_v32.common.kernels:_fused_norm_rope_kernel": arguments(
            {"*fp8e4nv": "mla_cache_ptr indexer_cache_ptr"}, MLA_CACHE_FP8=True, KV_DIM=512,
            INDEX_K_DIM=128, INDEX_K_BLOCK_SIZE=128, KPE_HALF_ROT_DIM=32, INDEX_K_HALF_ROT_DIM=32,
            INDEXER_CACHE_SHUFFLE=False,
        ),
        "models.deepseek_v41.common.engram:_engram_unpack_fp8_kernel": arguments(
            {"*u8": "packed values scales"}, PEER=False, LOCAL_HEADS=8
        ),
        "models.deepseek_v41.common.engram:_hash_ids_kernel": arguments(
            {"*i64": "multipliers primes offsets output", "*i32": "cache input_ids",
             "*i1": "dead_mask lookback_dead_mask"},
            MAX_NGRAM=3,
        ),
        "models.deepseek_v41.common.ops.query_quant:_q_kv_norm_quant_kernel": arguments(
            Q_SIZE=1536, KV_SIZE=512, BLOCK=2048
        ),
        "models.deepseek_v41.nvidia.ops.engram_peer:_peer_lookup_kernel": arguments(
            {"*i64": "metadata id_ptrs", "*u8": "output"}, DP=2
        ),
        "models.inkling.amd.moe:_inkling_gate_select_kernel": _INKLING_GATE,
        "models.inkling.nvidia.moe:_inkling_gate_select_kernel": _INKLING_GATE,
        "models.inkling.nvidia.ops.lamport:_sconv_publish_kernel": arguments(
            {"*i64": "peer_ptrs"}, WINDOW=4
        ),
        "models.inkling.amd.ops.fa4_rel_attention:_inkling_rel_attention_kernel": arguments(
            BLOCK_QH=256
        ),
        "models.kimi_k3.amd.ops.third_party.kda.chunk:recompute_w_u_fwd_kernel": arguments(
            {"*bf16": "qg kg"}
        ),
        "models.minimax_m3.amd.ops.index_topk:_index_block_score_kernel": arguments(
            stride_q_d=1, stride_ik_d=1, stride_s_k=1
        ),
        "models.minimax_m3.amd.ops.sparse_attn:_gqa_sparse_fwd_kernel": arguments(
            stride_qd=1, stride_kv_d=1, stride_od=1, stride_tk=1
        ),
        **{
            f"models.inkling.{vendor}.ops.qkvr_prep:{kernel}": _INKLING_QKV
            for vendor in ("amd", "nvidia")
            for kernel in ("_kv_kernel", "_qkvr_qkv_kernel")
        },
        "models.kimi_k3.nvidia.ops.recoverssm:_kda_recoverssm_verify_kernel": arguments(
            {"*bf16": "correction_cache_ptr"}, K=128, V=128, BK=128, SPEC_QUERY_LEN=4
        ),
        "models.kimi_k3.nvidia.ops.recoverssm:_commit_kda_state_kernel": arguments(
            K=128, V=128, BK=128
        ),
        "models.minimax_m3.amd.ops.index_topk:_topk_index_kernel": _TOPK_INDEX,
        "models.minimax_m3.common.ops.index_topk:_topk_index_kernel": _TOPK_INDEX,
        "models.minimax_m3.common.ops.index_topk:_topk_index_partial_kernel": arguments(
            {"*fp32": "s_ptr"}, topk=16, BLOCK_SIZE_T=16, chunk_blocks=256
        ),
        "models.qwen4_exp.common.ops.ple:_ple_conv_kernel": _SHORT_CONVOLUTION,
        "models.qwen4_exp.common.ops.ple:_ple_conv_writeback_kernel": _SHORT_CONVOLUTION,
        "models.deepseek_v4.xpu.xpu_sparse_decode_fp8:_dequant_gather_slots_kernel": arguments(
            {"*u8": "cache_ptr"}
        ),
    },
)  # fmt: skip
