# SPDX-License-Identifier: Apache-2.0
"""Bytes and operations against counting one by one."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anvil_attention.bench.cost import cost
from anvil_attention.contract import AttentionSpec
from anvil_attention.synthetic_batch import Request


@st.composite
def batches(draw: st.DrawFn) -> list[Request]:
    lengths = st.tuples(st.integers(0, 9), st.integers(0, 20))
    return [Request(q, q + more) for q, more in draw(st.lists(lengths, min_size=1, max_size=4))]


@settings(deadline=None)
@given(
    requests=batches(),
    window=st.one_of(st.none(), st.integers(1, 25)),
    causal=st.booleans(),
    kv_dtype=st.sampled_from([torch.bfloat16, torch.float8_e4m3fn]),
)
def test_against_counting(
    requests: list[Request], window: int | None, causal: bool, kv_dtype: torch.dtype
) -> None:
    spec = AttentionSpec(6, 2, 5, 3, 4, torch.bfloat16, kv_dtype, 1.0, sliding_window=window)
    pairs = rows = keys = 0
    for request in requests:
        seen = set()
        for row in range(request.query_len):
            position = request.seq_len - request.query_len + row
            rows += 1
            for key in range(request.seq_len):
                if causal and key > position:
                    continue
                if window is not None and abs(key - position) >= window:
                    continue
                pairs += 1
                seen.add(key)
        keys += len(seen)
    found = cost(spec, requests, causal)
    assert found.operations == pairs * 6 * 2 * (5 + 3)
    assert found.moved_bytes == keys * 2 * (5 + 3) * kv_dtype.itemsize + rows * 6 * (5 + 3) * 2


def test_decodes_of_a_known_model() -> None:
    spec = AttentionSpec(32, 8, 128, 128, 16, torch.bfloat16, torch.bfloat16, 1.0)
    found = cost(spec, [Request(1, 4096)] * 8)
    cache, rows = 8 * 4096 * 8 * 256 * 2, 8 * 32 * 256 * 2
    assert found.moved_bytes == cache + rows
    assert found.operations == 8 * 4096 * 32 * 256 * 2
