# SPDX-License-Identifier: Apache-2.0
"""Keys and values of each request out of the paged cache, for peers with a cache of their own."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from anvil_attention.contract import AttentionCall
from anvil_attention.synthetic_batch import Request, first_visible


@dataclass(frozen=True)
class Gathered:
    """What one request sees of the cache.

    Attributes:
        first_row, query_len: its rows of the query.
        first_key, seq_len: the range of its tokens that is gathered.
        slots: [keys] int64: the places of the keys in the cache.
        key, value: [keys, num_kv_heads, head size], contiguous, of the query's dtype, with the
            scales of the cache applied.
    """

    first_row: int
    query_len: int
    first_key: int
    seq_len: int
    slots: Tensor
    key: Tensor
    value: Tensor

    @property
    def lengths(self) -> tuple[int, int]:
        return self.query_len, self.seq_len


def gather_requests(call: AttentionCall) -> list[Gathered]:
    """The requests of a call that have rows, on the call's device."""
    starts, lens = call.query_start_loc.tolist(), call.seq_lens.tolist()
    size = call.spec.block_size
    found = []
    for index, (start, end) in enumerate(itertools.pairwise(starts)):
        if start == end:
            continue
        first = first_visible(call.spec, Request(end - start, lens[index]))
        position = torch.arange(first, lens[index], device=call.query.device)
        block = call.block_table[index].index_select(0, position // size).long()
        offset = position % size

        def rows(
            cache: Tensor, scale: float, block: Tensor = block, offset: Tensor = offset
        ) -> Tensor:
            gathered = cache[block, offset]
            if gathered.dtype.itemsize == 1 or scale != 1.0:
                gathered = (gathered.float() * scale).to(call.spec.dtype)
            return gathered.to(call.spec.dtype).contiguous()

        found.append(
            Gathered(
                first_row=start,
                query_len=end - start,
                first_key=first,
                seq_len=lens[index],
                slots=block * size + offset,
                key=rows(call.key_cache, call.k_scale),
                value=rows(call.value_cache, call.v_scale),
            )
        )
    return found
