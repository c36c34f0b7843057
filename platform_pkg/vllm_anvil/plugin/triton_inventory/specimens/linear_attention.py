# SPDX-License-Identifier: Apache-2.0
"""Linear attention with gates: the delta rule, its recurrent and chunked forms."""

from __future__ import annotations

from typing import Any

from vllm_anvil.plugin.triton_inventory.specimens.area import Area, arguments

# Also of the models that bring forms of their own.
GATED: tuple[tuple[str, Any], ...] = (
    # Gates are sums of logarithms, and states are kept in full precision.
    (r"g|gk|g_cumsum|gate|A_log|a_log|dt_bias|g_bias|h0|ht|Ad|Akk", "*fp32"),
    (r"(cu_)?chunk_indices|chunk_offsets|cu_seqlens|ssm_state_indices|num_accepted_tokens", "*i32"),
    (r"chunk_indices", "*i32"),
    (r"HV", 16),
    (r"H|Hg", 8),
    (r"SPLIT_BATCH_HEAD_GRID|IS_KDA|IS_BETA_HEADWISE", False),
)

AREA = Area(
    name="linear_attention",
    modules=("third_party.flash_linear_attention",),
    arguments=GATED,
    kernels={
        "third_party.flash_linear_attention.ops.cumsum:chunk_local_cumsum_scalar_kernel": arguments(
            {"*fp32": "s o"}
        ),
    },
)
