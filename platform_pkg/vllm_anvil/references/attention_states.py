# SPDX-License-Identifier: Apache-2.0
"""References of vllm_anvil.ops.attention_states."""

import torch
from torch import Tensor

from .precision import compute_dtype


def merge_attn_states(
    prefix_output: Tensor, prefix_lse: Tensor, suffix_output: Tensor, suffix_lse: Tensor
) -> tuple[Tensor, Tensor]:
    dtype = compute_dtype(prefix_output, suffix_output, prefix_lse)
    lses = torch.stack((prefix_lse.to(dtype), suffix_lse.to(dtype)))
    maximum = lses.amax(0)
    # Where neither side saw a key, any finite shift keeps exp() from NaN.
    weights = (lses - maximum.masked_fill(maximum == -torch.inf, 0.0)).exp()
    total = weights.sum(0)
    shares = (weights / total.masked_fill(total == 0, 1.0)).transpose(1, 2)[..., None]
    sides = (prefix_output.to(dtype), suffix_output.to(dtype))
    # A side without keys does not count, whatever its output holds.
    parts = [
        torch.where(share > 0, side * share, 0.0) for side, share in zip(sides, shares, strict=True)
    ]
    lse = maximum + total.log()
    return (parts[0] + parts[1]).to(prefix_output.dtype), lse.to(prefix_lse.dtype)
