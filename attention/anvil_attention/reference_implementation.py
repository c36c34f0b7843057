# SPDX-License-Identifier: Apache-2.0
"""The plain-torch reference as an implementation of the contract."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .contract import AttentionImplementation
from .reference import paged_attention


def attend(
    *,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    output: Tensor,
    scale: float,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    max_query_len: int = 0,
    max_seq_len: int = 0,
    workspace: Tensor | None = None,
    **options: Any,
) -> None:
    """`reference.paged_attention` with the arguments of `contract.AttentionCall`.

    The scales of the cache are applied outside: keys enter by the logits alone, and values by the
    result, before it is rounded to the dtype of `output`.
    """
    wide = output
    if v_scale != 1.0:
        precise = torch.float64 if query.dtype == torch.float64 else torch.float32
        wide = torch.zeros(output.shape, dtype=precise, device=output.device)
    paged_attention(
        query,
        key_cache,
        value_cache,
        block_table,
        query_start_loc,
        seq_lens,
        scale * k_scale,
        wide,
        **options,
    )
    if v_scale != 1.0:
        rows = int(query_start_loc[-1])
        output[:rows] = wide[:rows].mul_(v_scale).to(output.dtype)


reference_attention = AttentionImplementation(name="reference", function=attend)
