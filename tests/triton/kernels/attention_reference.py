# SPDX-License-Identifier: Apache-2.0
"""Attention of one sequence in float64, and how near a kernel of some dtype has to come."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Attention(NamedTuple):
    """What attention gives: float64 output and its scale [queries, heads, width], lse too."""

    output: Tensor
    size: Tensor  # the weighted sum of the values' magnitudes
    lse: Tensor  # [queries, heads], natural logarithm


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
) -> Attention:
    """Attention of `query` [n, heads, width] to `key`, `value` [m, kv heads, width].

    `mask` is bool [n, m]; the last query stands at the last key. `sinks` and `slopes` are
    [heads]: a score without a value, and the scores' growth
    with the key's position, which is 0 at the first query.
    """
    queries, heads, _ = query.shape
    group = heads // key.shape[1]
    keys = key.double().repeat_interleave(group, 1)
    values = value.double().repeat_interleave(group, 1)
    scores = torch.einsum("nhd,mhd->hnm", query.double(), keys) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if slopes is not None:
        distance = torch.arange(len(key)) - (len(key) - queries)
        scores = scores + slopes.double()[:, None, None] * distance
    scores = scores.masked_fill(~mask, float("-inf"))
    everything = scores
    if sinks is not None:
        column = sinks.double()[:, None, None].expand(heads, queries, 1)
        everything = torch.cat([scores, column], -1)
    lse = everything.logsumexp(-1)
    weights = torch.exp(scores - lse[..., None])
    return Attention(
        torch.einsum("hnm,mhd->nhd", weights, values),
        torch.einsum("hnm,mhd->nhd", weights, values.abs()),
        lse.T,
    )


def causal_mask(queries: int, keys: int, window: int = 0) -> Tensor:
    """bool [queries, keys]: itself and what came before, at most `window` in all if not 0."""
    distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)[None]
    return (distance >= 0) & ((distance < window) if window else True)


def tolerance(dtype: torch.dtype) -> float:
    """Of a weighted sum: 16-bit weights and results are rounded, float32 is the softmax's error."""
    return 2e-5 if dtype == torch.float32 else torch.finfo(dtype).eps


def assert_attention(actual: Tensor, expected: Attention, epsilon: float) -> None:
    """`actual` differs by at most `epsilon` of the sum of the magnitudes."""
    error = (actual.cpu().double() - expected.output).abs()
    relative = error / expected.size.clamp(min=1e-6)
    assert (relative <= epsilon).all(), f"off by {float(relative.max())} of the magnitudes"
