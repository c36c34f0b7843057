# SPDX-License-Identifier: Apache-2.0
"""Samplers: temperature, penalties, top-k and top-p, logprobs, grammar, watermarks."""

from __future__ import annotations

from vllm_anvil.plugin.triton_inventory.specimens.area import Area, arguments
from vllm_anvil.plugin.triton_inventory.specimens.worker import BUFFERS

AREA = Area(
    name="sample",
    modules=(
        "v1.sample",
        "v1.worker.gpu.sample",
        "v1.worker.gpu.structured_outputs",
        "v1.worker.gpu.metrics",
    ),
    arguments=(
        (r"(K|k_ptr)", "*i32"),
        (r"(bonus_token_ids|target_argmax)_ptr", "*i64"),
        (r"VOCAB_SIZE", 32000),
        *BUFFERS,
    ),
    kernels={
        "v1.sample.ops.topk_topp_triton:_topk_topp_kernel": arguments(
            {"*fp32": "P"}, BLOCK_SIZE=8192, BLOCK_SIZE_TRUNC=4096, SPLIT_COVERS_PONLY=False
        ),
        "v1.sample.rejection_sampler:expand_kernel": arguments({"*fp32": "output_ptr input_ptr"}),
        "v1.sample.rejection_sampler:sample_recovered_tokens_kernel": arguments(
            {"*fp32": "inv_q_ptr"}, USE_FP64_GUMBEL=False
        ),
        "v1.worker.gpu.sample.batch_shard:_build_shard_plan_kernel": arguments(
            {"*i64": "local_logits_indices_ptr"},
            TP_SIZE=2,
            PADDED_NUM_LOGITS_PER_REQ=4,
        ),
        "v1.worker.gpu.sample.gumbel:_gumbel_sample_kernel": (
            arguments(
                logits_cache_ptr=None, logits_cache_col_ptr=None, logits_cache_source_ptr=None,
                logits_cache_stride_0=0, logits_cache_stride_1=0, logits_cache_source_stride=0,
            ),
            # What a speculator launches.
            arguments(IS_DRAFTING=True),
        ),
        "v1.worker.gpu.sample.logit_bias:_bias_kernel": arguments(
            BLOCK_SIZE=1024, CHECK_ALL_MASKED_ROWS=True
        ),
        "v1.worker.gpu.sample.logprob:_ranks_kernel": arguments(
            {"*i64": "output_ptr token_ids_ptr"}
        ),
        "v1.worker.gpu.sample.logprob:_topk_log_softmax_kernel": arguments(
            {"*i64": "topk_ids_ptr"}
        ),
        "v1.worker.gpu.sample.logprob:_fill_logprob_token_ids_kernel": arguments(
            {"*i1": "out_valid_mask_ptr"}, NUM_TOPK=8
        ),
        "v1.worker.gpu.sample.output:_compact_sampling_mask_kernel": arguments(
            {"*u8": "packed_mask_ptr"}, ROWS_PER_REQUEST=1
        ),
        "v1.worker.gpu.sample.watermark:_repeated_context_mask_kernel": arguments(
            {"*i1": "output_ptr", "*i32": "local_positions_ptr"},
            prior_contexts_ptr=None, steps_ptr=None, enabled_ptr=None,
            prior_contexts_stride_0=0, prior_contexts_stride_1=0, steps_stride=0,
            MAX_HISTORY=256, INCLUDE_PROMPT=True,
        ),
        "v1.worker.gpu.sample.watermark:_philox_gumbel_kernel": arguments(
            {"u32": "key_0_value key_1_value"}
        ),
    },
)  # fmt: skip
