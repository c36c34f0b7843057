# SPDX-License-Identifier: Apache-2.0
"""Attention in float64, one request at a time, as products of matrices.

It says what `dense_attention` says, to which test_native_sweep.py compares it, in a hundredth of
the time: for tests of thousands of calls. It shares no code with what it is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from anvil_attention.contract import AttentionCall

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Expected:
    """What a call on the CPU gives.

    Attributes:
        values: [rows of requests, num_heads, value_head_size] float64.
        norms: [rows of requests, num_heads] float64: the norm of the values if what is summed had
            random signs. Where values cancel out, errors still are shares of that.
    """

    values: torch.Tensor
    norms: torch.Tensor


def matrix_attention(call: AttentionCall) -> Expected:
    """Attention of a call on the CPU by its definition."""
    spec = call.spec
    starts, lens = call.query_start_loc.tolist(), call.seq_lens.tolist()
    slopes, sinks = (
        None if tensor is None else tensor.double().numpy().reshape(spec.num_kv_heads, -1, 1, 1)
        for tensor in (call.alibi_slopes, call.sinks)
    )
    out = np.zeros((starts[-1], spec.num_heads, spec.value_head_size))
    norms = np.zeros((starts[-1], spec.num_heads))
    for request, seq_len in enumerate(lens):
        rows = slice(starts[request], starts[request + 1])
        causal = call.causal if isinstance(call.causal, bool) else bool(call.causal[request])
        position = np.arange(seq_len - (rows.stop - rows.start), seq_len)
        visible = _visible(position, seq_len, causal, spec.sliding_window)
        # Keys that none of the rows sees hold anything.
        keys = np.flatnonzero(visible.any(0))
        if len(keys) == 0:
            continue
        blocks = call.block_table[request].numpy()[keys // spec.block_size]
        place = (torch.from_numpy(blocks).long(), torch.from_numpy(keys % spec.block_size))
        # [num_kv_heads, queries of a KV head, rows, elements]
        query = call.query[rows].double().numpy()
        query = query.reshape(len(position), spec.num_kv_heads, -1, spec.head_size)
        logits = query.transpose(1, 2, 0, 3) @ _gathered(call.key_cache, place).transpose(
            0, 1, 3, 2
        )
        logits *= spec.scale * call.k_scale
        if spec.logits_soft_cap is not None:
            logits = spec.logits_soft_cap * np.tanh(logits / spec.logits_soft_cap)
        if slopes is not None:
            logits -= slopes * np.abs(keys[None, :] - position[:, None])
        logits[..., ~visible[:, keys]] = -np.inf
        weights, values = _softmax(logits, sinks), _gathered(call.value_cache, place) * call.v_scale
        result = (weights @ values).transpose(2, 0, 1, 3)
        out[rows] = result.reshape(len(position), spec.num_heads, -1)
        squares = np.square(weights) @ np.square(values).sum(-1, keepdims=True)
        norms[rows] = np.sqrt(squares).transpose(2, 0, 1, 3).reshape(len(position), -1)
    return Expected(torch.from_numpy(out), torch.from_numpy(norms))


def _visible(
    position: np.ndarray, seq_len: int, causal: bool, window: int | None
) -> np.ndarray:  # [rows, seq_len]
    """Which keys each row sees."""
    distance = np.arange(seq_len)[None, :] - position[:, None]
    seen = distance <= 0 if causal else np.ones(distance.shape, dtype=bool)
    return seen if window is None else seen & (np.abs(distance) < window)


def _gathered(cache: torch.Tensor, place: tuple[torch.Tensor, torch.Tensor]) -> np.ndarray:
    """[num_kv_heads, 1, keys, elements] of the keys or values at `place`."""
    # There is no indexing of float8.
    found = cache.view(_BITS[cache.element_size()])[place].view(cache.dtype)
    return found.double().numpy().transpose(1, 0, 2)[:, None]


def _softmax(logits: np.ndarray, sinks: np.ndarray | None) -> np.ndarray:
    """Weights of the keys; those of rows that see none are 0."""
    most = logits.max(-1, keepdims=True)
    if sinks is not None:
        most = np.maximum(most, sinks)
    most = np.where(np.isneginf(most), 0, most)
    weights = np.exp(logits - most)
    total = weights.sum(-1, keepdims=True) + (0 if sinks is None else np.exp(sinks - most))
    return weights / np.where(total == 0, 1, total)
