# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding: drafts, their inputs, their acceptance."""

from __future__ import annotations

from vllm_anvil.plugin.triton_inventory.specimens.area import Area, arguments
from vllm_anvil.plugin.triton_inventory.specimens.worker import BUFFERS

AREA = Area(
    name="speculative",
    modules=("v1.spec_decode", "v1.worker.gpu.spec_decode"),
    arguments=BUFFERS,
    kernels={
        "v1.spec_decode.utils:copy_and_expand_eagle_inputs_kernel": arguments(
            {
                "*i1": "out_is_rejected_token_mask_ptr out_is_masked_token_mask_ptr",
                "i1": "shift_input_ids",
            }
        ),
        "v1.spec_decode.utils:eagle_prepare_next_token_padded_kernel": arguments(
            {"*i1": "discard_request_mask_ptr", "*i32": "sampled_token_ids_ptr"}
        ),
        "v1.worker.gpu.spec_decode.dflash.speculator:_prepare_dflash_inputs_kernel": arguments(
            {"*i64": "out_sample_indices_ptr"}, SAMPLE_FROM_ANCHOR=False
        ),
        "v1.worker.gpu.spec_decode.acceptance_estimator:_refit_kernel": arguments(
            L2=1.0, DAMPING=64.0, BLOCK=4, NUM_SPECULATIVE_STEPS=3
        ),
        "v1.worker.gpu.spec_decode.ngram.speculator:_ngram_scan_kernel": arguments(
            MIN_N=1, MAX_N=3, MAX_N_PO2=4, BLOCK_L=1024
        ),
        "v1.worker.gpu.spec_decode.ngram.speculator:_ngram_finalize_kernel": arguments(
            K=3, K_PO2=4
        ),
        "v1.worker.gpu.spec_decode.rejection_sampler_utils:_rejection_kernel": arguments(
            {"*fp32": "synthetic_conditional_rates_ptr"}, SYNTHETIC_MODE=False
        ),
        "v1.worker.gpu.spec_decode.rejection_sampler_utils:_resample_kernel": arguments(
            {"u32": "watermark_key_0 watermark_key_1"}, CONTEXT_WIDTH=4
        ),
    },
)
