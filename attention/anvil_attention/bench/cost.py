# SPDX-License-Identifier: Apache-2.0
"""What a call must move and compute at least, whatever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from anvil_attention.contract import AttentionSpec
from anvil_attention.synthetic_batch import Request


@dataclass(frozen=True)
class Cost:
    """Attributes:
    moved_bytes: each visible key and value read once, query read and output written once.
    operations: multiplications and additions of visible pairs: query by key, weight by value.
    """

    moved_bytes: int
    operations: int


def cost(
    spec: AttentionSpec, requests: Sequence[Request], causal: bool | Sequence[bool] = True
) -> Cost:
    """The cost of a batch. What no query sees is neither moved nor computed."""
    flags = [causal] * len(requests) if isinstance(causal, bool) else list(causal)
    pairs = keys = rows = 0
    for request, flag in zip(requests, flags, strict=True):
        seen, visible = _visible(spec, request, flag)
        pairs += seen
        keys += visible
        rows += request.query_len
    both = spec.head_size + spec.value_head_size
    return Cost(
        moved_bytes=keys * spec.num_kv_heads * both * spec.kv_dtype.itemsize
        + rows * spec.num_heads * both * spec.dtype.itemsize,
        operations=2 * pairs * spec.num_heads * both,
    )


def _visible(spec: AttentionSpec, request: Request, causal: bool) -> tuple[int, int]:
    """Pairs of a query and a key that it sees, and keys that any query sees."""
    if request.query_len == 0:
        return 0, 0
    position = torch.arange(request.seq_len - request.query_len, request.seq_len)
    first = torch.zeros_like(position)
    last = position if causal else torch.full_like(position, request.seq_len - 1)
    if spec.sliding_window is not None:
        first = (position - spec.sliding_window + 1).clamp_min(0)
        if not causal:
            last = (position + spec.sliding_window - 1).clamp_max(request.seq_len - 1)
    counts = (last - first + 1).clamp_min(0)
    # Neighbouring queries see neighbouring keys, so all that is seen is one range.
    seen = last[counts > 0]
    if len(seen) == 0:
        return 0, 0
    return int(counts.sum()), int(seen.max() - first[counts > 0].clamp_min(0).min() + 1)
