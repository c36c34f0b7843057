# SPDX-License-Identifier: Apache-2.0
"""A paged attention in plain torch, one request at a time.

It is written to be read: see README.md for how to check, measure and serve it. Its only tie to
Anvil is the signature, that of the contract in docs/reference/attention_contract.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def attention(
    *,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    output: Tensor,
    scale: float,
    causal: bool | Tensor = True,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    **unused: Any,  # max_query_len, max_seq_len, workspace
) -> None:
    """Writes the attention of each request's newest tokens over its cached keys to `output`."""
    block_size, num_kv_heads = key_cache.shape[1:3]
    queries_per_kv = query.shape[1] // num_kv_heads
    starts, lens = query_start_loc.tolist(), seq_lens.tolist()
    flags = [causal] * len(lens) if isinstance(causal, bool) else causal.tolist()

    for request, length in enumerate(lens):
        rows = slice(starts[request], starts[request + 1])
        query_len = rows.stop - rows.start
        if query_len == 0:  # padding
            continue
        position = torch.arange(length - query_len, length, device=query.device)
        # Blocks that have slid out of the window are gone: nothing before may be read.
        first = 0
        if sliding_window is not None:
            first = max(0, length - query_len - sliding_window + 1)
        token = torch.arange(first, length, device=query.device)
        block = block_table[request].index_select(0, token // block_size).long()
        place = (block, token % block_size)
        # [keys, num_kv_heads, size] -> [num_heads, keys, size]
        keys = key_cache[place].float().mul(k_scale).repeat_interleave(queries_per_kv, 1)
        values = value_cache[place].float().mul(v_scale).repeat_interleave(queries_per_kv, 1)
        keys, values = keys.transpose(0, 1), values.transpose(0, 1)

        logits = query[rows].transpose(0, 1).float() @ keys.transpose(1, 2) * scale
        if logits_soft_cap is not None:
            logits = torch.tanh(logits / logits_soft_cap) * logits_soft_cap
        distance = position[:, None] - token
        if alibi_slopes is not None:
            logits -= alibi_slopes[:, None, None] * distance.abs()
        if flags[request]:
            logits.masked_fill_(distance < 0, float("-inf"))
        if sliding_window is not None:
            logits.masked_fill_(distance.abs() >= sliding_window, float("-inf"))
        if sinks is not None:  # one more key, whose value is 0
            sink = sinks.float()[:, None, None].expand(-1, query_len, 1)
            logits = torch.cat((logits, sink), dim=-1)
        weights = torch.softmax(logits, dim=-1)[..., : len(token)]
        output[rows] = (weights @ values).transpose(0, 1).to(output.dtype)


def broken(**arguments: Any) -> None:
    """The same with a scale that is 3 % off, to see what a failing check looks like."""
    attention(**arguments | {"scale": arguments["scale"] * 1.03})
