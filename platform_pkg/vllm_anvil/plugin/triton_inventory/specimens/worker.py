# SPDX-License-Identifier: Apache-2.0
"""The worker: what prepares a step's inputs and takes its outputs apart, block tables, the states
of hybrid models, the offload of the KV cache."""

from __future__ import annotations

from typing import Any

from vllm_anvil.plugin.triton_inventory.specimens.area import Area, arguments

# What the buffers of Model Runner V2 hold; the speculators and the sampler are handed the same.
BUFFERS: tuple[tuple[str, Any], ...] = (
    (r".*idx_mapping(_ptr)?|batch_idx_to_req_idx|.*req_(state|indices|ids)_ptr", "*i64"),
    (r".*logits_indices_ptr|gathered_src_indices_ptr|last_token_indices_ptr", "*i64"),
    (r"cached_draft_input_ids_ptr|draft_input_id_overrides_ptr", "*i64"),
    (r"(cu_)?num_draft_tokens_ptr", "*i32"),
    (r".*last_sampled.*_ptr|.*draft_tokens_ptr|drafts_ptr|draft_sampled_ptr|tokens_ptr", "*i64"),
    (r"(flat_)?sampled(_token(_id)?s)?_ptr|out_token_ids_ptr|src_ids_ptr", "*i64"),
    (
        r"gathered_(ids_)?ptr|logprob_token_ids_ptr|.*token_ranks_ptr|prompt_logprobs_token_ids_ptr",
        "*i64",
    ),
    (r"contexts_ptr|prior_contexts_ptr|candidate_ptr|cached_candidate_ptr|scratch_ptr", "*i64"),
    (r".*draft_step_ptr|draft_current_step_ptr|step_ptr|steps_ptr|.*seeds?_ptr", "*i64"),
    (r"(.*_)?(local_pos|scan_pos|prefill_positions)_ptr", "*i32"),
    (r".*pos(itions?)?(_ptr)?|logits_cache_col_ptr", "*i64"),
    (r".*slot_mappings?_ptr", "*i64"),
    (r"(.*_)?(input_ids|token_ids)_ptr", "*i32"),
    (
        r"next_prefill_tokens_ptr|prefill_delta_ptr|output_bin_counts_ptr|bad_word_offsets_ptr",
        "*i32",
    ),
    (r"num_(sampled|rejected).*_ptr|(token_)?counts_ptr|topk_indices_ptr", "*i32"),
    (r".*skip_mask_ptr|watermarking_ptr|enabled_ptr|slot_mapping_enabled|dcp_sharded", "*i1"),
    (r".*bin_mask_ptr|bitmask_ptr", "*i32"),
    (
        r"logits_cache_(source_)?ptr|temp(erature)?_ptr|.*penalty_ptr|min_p_ptr|bias_ptr|logits_ptr|.*scores_ptr",
        "*fp32",
    ),
    (r"slope_ptr|intercepts_ptr|pred_ptr|features_ptr|conf_ptr|info_ptr|grad_ptr", "*fp32"),
    (r".*hidden_states_ptr|.*embeds_ptr", "*bf16"),
    (r".*ptrs_ptr|.*_table_ptrs|src_ptrs|dst_ptrs|.*addrs_ptr", "*u64"),
    (r"block_table_strides", "*i64"),
    (r"block_sizes", "*i32"),
    (r"NUM_SPECULATIVE_STEPS|num_steps", 3),
    (r"MAMBA_BLOCK_SIZE|block_size", 16),
    (r"IS_DRAFTING|USE_FP64|PER_TOKEN_COL|per_token_step", False),
    (r"(CP_)?INTERLEAVE", 1),
)

AREA = Area(
    name="worker",
    modules=("v1.worker", "v1.kv_offload", "distributed"),
    arguments=BUFFERS,
    kernels={
        "v1.worker.block_table:ComputeSlotMappingKernel.kernel": arguments(BLOCK_SIZE=1024),
        "v1.worker.gpu.block_table:_compute_slot_mappings_kernel": arguments(PAD_ID=-1),
        "v1.worker.gpu.buffer_utils:_apply_write_kernel": arguments(
            {
                "*i32": "output_ptr write_indices_ptr write_starts_ptr write_contents_ptr",
                "i64": "output_stride",
            },
            write_group_ids_ptr=None,
        ),
        "v1.worker.gpu.cp_utils:_dcp_local_seq_lens_kernel": arguments({"*i32": "out_ptr"}),
        "v1.worker.gpu.input_batch:_combine_sampled_and_draft_tokens_kernel": arguments(
            BLOCK_SIZE=1024, NUM_NEW_SAMPLED_TOKENS=1
        ),
        "v1.worker.gpu.mm.rope:_prepare_rope_positions_kernel": arguments(NUM_DIMS=3),
        "v1.worker.gpu.model_states.prompt_embeds:_apply_prompt_embeds_kernel": arguments(
            {"*u64": "embeds_ptrs_ptr mask_ptrs_ptr"}
        ),
        "v1.worker.mamba_utils:batch_memcpy_kernel": arguments({"*i32": "sizes"}),
        "v1.worker.mamba_utils:get_aligned_state_indices_multi_group_kernel": arguments(
            {"*i32": "state_indices_ptr"},
            NUM_GROUPS=2,
            BLOCK_GROUPS=2,
            NUM_STATE_SLOTS=4,
            BLOCK_STATE_SLOTS=4,
            seq_lens_stride=1,
        ),
        "v1.worker.mamba_utils:postprocess_mamba_fused_kernel": (
            _MAMBA_STATE := arguments(
                {
                    "*i64": "block_table_ptrs_ptr state_base_addrs_ptr state_block_strides_ptr "
                    "state_inner_sizes_ptr state_dim_row_stride_ptr",
                    "*i32": "state_elem_sizes_ptr state_conv_widths_ptr state_group_indices_ptr "
                    "state_dim_row_count_ptr src_col_ptr token_bias_ptr",
                },
                CONV_STATE_DIM_FIRST=False,
                TEMPORAL_TILES=4,
            )
        ),
        "v1.worker.mamba_utils:precopy_mamba_align_fused_kernel": _MAMBA_STATE,
        "v1.worker.mamba_utils:preprocess_mamba_align_fused_kernel": arguments(
            {"*i32": "src_col_ptr src_off_ptr state_idx_ptr"}
        ),
        "v1.worker.utils:_zero_kv_blocks_kernel": arguments(
            {
                "*u64": "seg_addrs_ptr",
                "*i64": "seg_block_strides_ptr seg_page_sizes_ptr block_ids_ptr",
            },
            BLOCK_SIZE=1024,
        ),
        "v1.kv_offload.cpu.swap_blocks_triton:_swap_blocks_kernel": arguments(
            {"*i64": "src_addrs dst_addrs sizes"}
        ),
    },
)
