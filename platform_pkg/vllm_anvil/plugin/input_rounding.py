# SPDX-License-Identifier: Apache-2.0
"""What of the inputs of packed weights is rounded: exactness against speed.

Hidden states are float32. Processors with dot products of bfloat16 multiply those at twice
float32's rate, for which inputs must be rounded; docs/design/precision.md has what each way costs.
"""

from __future__ import annotations

import torch

from vllm_anvil import envs


def of(x: torch.dtype, weight: torch.dtype) -> tuple[torch.dtype | None, bool]:
    """`input_dtype` and `keep_remainders` for the product of inputs and weights of these dtypes, as
    ANVIL_ROUND_INPUTS says. Only bfloat16 has remainders: with others `most` rounds nothing. A
    model that computes in its weights' dtype has rounded already."""
    if x == weight:
        return weight, False
    rounding = envs.ANVIL_ROUND_INPUTS
    if rounding == "all":
        return weight, False
    if rounding == "most" and weight == torch.bfloat16:
        return weight, True
    return None, False
