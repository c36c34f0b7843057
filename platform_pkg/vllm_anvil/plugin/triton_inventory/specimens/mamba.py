# SPDX-License-Identifier: Apache-2.0
"""State-space models: convolutions, selective scans, their chunked form, the states."""

from __future__ import annotations

from vllm_anvil.plugin.triton_inventory.specimens.area import Area, Dtype, arguments

_OPS = "model_executor.layers.mamba.ops."

AREA = Area(
    name="mamba",
    modules=("model_executor.layers.mamba", "model_executor.layers.lightning_attn"),
    arguments=(
        (r"slope_rate(_ptr)?|dA_cs_ptr|dA_cumsum_ptr|dt_out_ptr|A_ptr", "*fp32"),
        (r"cu_chunk_seqlens_ptr|.*_indices_ptr|.*block_idx.*|initial_state_idx", "*i32"),
        (r"write_pos_ptr|num_computed_tokens|block_idx_first_scheduled_token", "*i32"),
        (r"stride_.*_(dim|dstate)|stride_w_width|stride_(ak|bk|outn|.*csize(_k)?)", 1),
        (r"batch_ptr", "*i32"),
        (r"dt_min", 0.0),
        (r"dt_max", float("inf")),
        (r"IS_TRITON_22", True),
        (r"dot_dtype", Dtype("bfloat16")),
        (r"chunk_size", 256),
        (r"stride_(x|z|out)_hdim|stride_init_states_dstate|stride_seq_idx_chunk", 1),
        (r"USE_RS_ROUNDING", False),
        (r"DT_SOFTPLUS|TIE_HDIM", True),
        (r"nheads_ngroups_ratio", 8),
    ),
    kernels={
        f"{_OPS}causal_conv1d:_causal_conv1d_fwd_kernel": arguments(
            IS_APC_ENABLED=False, launch_pdl=False
        ),
        f"{_OPS}causal_conv1d:_causal_conv1d_update_kernel": arguments(
            seqlen=1, IS_APC_ENABLED=False, IS_VARLEN=False, IS_SPEC_DECODING=False,
            num_accepted_tokens_ptr=None, query_start_loc_ptr=None, initial_state_idx=None,
            block_idx_last_scheduled_token=None, state_len=3, NP2_STATELEN=4,
        ),
        f"{_OPS}mamba_ssm:_selective_scan_update_kernel": arguments(
            rand_seed_ptr=None, IS_SPEC_DECODING=False, IS_VARLEN=False,
            num_accepted_tokens_ptr=None, cu_seqlens_ptr=None, PHILOX_ROUNDS=0,
        ),
        f"{_OPS}ssd_chunk_scan:_chunk_scan_fwd_kernel": arguments(D_HAS_HDIM=False),
        "model_executor.layers.mamba.linear.bailing_linear_attn:"
        "_bailing_linear_attn_decode_spec_step_kernel": arguments(q_start=0, DRAFT_IDX=1),
    },
)  # fmt: skip
