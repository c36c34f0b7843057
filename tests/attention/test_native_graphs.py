# SPDX-License-Identifier: Apache-2.0
"""A recorded call of the native attention follows its tensors: what is in them when it is replayed
decides, lengths and block tables included."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from matrix_attention import matrix_attention
from sweep_cases import BRAIN, FULL, SweepCase

import vllm_anvil.device as anvil
from anvil_attention import verification
from anvil_attention.contract import AttentionCall, AttentionSpec
from anvil_attention.resolve import resolve

ANVIL = torch.device("anvil")
LAYERS = {
    "smollm2": AttentionSpec(9, 3, 64, 64, 16, BRAIN, BRAIN, 0.125),
    "everything": AttentionSpec(
        *(4, 2, 40, 24, 7, FULL, FULL, 0.2),
        sliding_window=300,
        logits_soft_cap=20.0,
        has_alibi=True,
        has_sinks=True,
    ),
    "float8": AttentionSpec(8, 1, 128, 128, 32, BRAIN, torch.float8_e5m2, 0.1),
}
# Batches of as many rows and requests that follow each other in one graph: decodes, prompts beside
# decodes, long ones and none at all.
STEPS = [
    [(1, 40), (1, 3), (1, 1000), (1, 64)],
    [(1, 2200), (1, 2201), (1, 1), (1, 65)],
    [(0, 0), (4, 300), (0, 10), (0, 0)],
    [(2, 2), (1, 1), (0, 0), (1, 130)],
    [(0, 0), (0, 0), (0, 0), (0, 0)],
    [(1, 41), (1, 4), (1, 1001), (1, 65)],
]


@pytest.mark.parametrize("layer", LAYERS)
def test_replays_follow_lengths_tables_and_data(layer: str) -> None:
    implementation = resolve("native")
    calls = [largest(SweepCase(LAYERS[layer], lens, seed=i)) for i, lens in enumerate(STEPS)]
    placed = verification.place_call(calls[0], ANVIL, implementation)
    implementation(placed.call)
    graph = anvil.Graph()
    with anvil.graph(graph):
        implementation(placed.call)
    for step in (0, 1, 2, 3, 4, 5, 1, 0):
        call = calls[step]
        for field in dataclasses.fields(call):
            given, ours = getattr(placed.call, field.name), getattr(call, field.name)
            if isinstance(given, torch.Tensor) and field.name not in ("output", "workspace"):
                given.copy_(ours)
        placed.reset()
        graph.replay()
        verification.synchronise(ANVIL)
        expected = matrix_attention(call)
        assert verification.wrong_values(placed, expected.values, expected.norms) is None, step
        padding = placed.call.output[len(expected.values) :].cpu()
        assert bool(padding.isnan().all()), step  # rows of padding keep what they hold


def largest(case: SweepCase) -> AttentionCall:
    """A case's call in tensors of the size that all steps share, with bounds that hold for all."""
    call = case.call()
    blocks, width = 400 * 16 // case.spec.block_size, 2400 // case.spec.block_size
    keys, values = (
        torch.full((blocks, *cache.shape[1:]), torch.nan).to(cache.dtype)
        for cache in (call.key_cache, call.value_cache)
    )
    assert call.key_cache.shape[0] <= blocks
    for whole, cache in ((keys, call.key_cache), (values, call.value_cache)):
        whole[: len(cache)].copy_(cache)
    table = torch.full((len(case.lens), width), -1, dtype=torch.int32)
    table[:, : call.block_table.shape[1]] = call.block_table
    rows = max(sum(rows for rows, _ in lens) for lens in STEPS)
    query = torch.full((rows, *call.query.shape[1:]), torch.nan, dtype=call.query.dtype)
    query[: len(call.query)] = call.query
    return dataclasses.replace(
        call,
        query=query,
        output=torch.empty(*query.shape[:2], case.spec.value_head_size, dtype=query.dtype),
        key_cache=keys,
        value_cache=values,
        block_table=table,
        max_query_len=rows,
        max_seq_len=2400,
    )
