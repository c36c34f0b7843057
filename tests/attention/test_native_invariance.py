# SPDX-License-Identifier: Apache-2.0
"""Batch invariance of the native attention: a row's result is the same, bit for bit, whatever else
is in the batch, however a prompt is cut into chunks, and on any number of threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import pytest
import torch
from native_sweep import batch_invariant
from sweep_cases import BRAIN, FULL, HALF, SweepCase
from torch import Tensor

from anvil_attention import verification
from anvil_attention.contract import AttentionCall, AttentionSpec
from vllm_anvil import device as anvil

ANVIL = torch.device("anvil")


def layer(
    heads: tuple[int, int], sizes: tuple[int, int], dtype: torch.dtype, **options: object
) -> AttentionSpec:
    spec = AttentionSpec(*heads, *sizes, 16, dtype, dtype, sizes[0] ** -0.5)
    return dataclasses.replace(spec, **options)  # type: ignore[arg-type]


LAYERS = {
    "smollm2": layer((9, 3), (64, 64), BRAIN),
    "float32": layer((4, 4), (40, 24), FULL, block_size=7),
    "float8": layer((8, 1), (128, 128), BRAIN, kv_dtype=torch.float8_e4m3fn),
    "window": layer((4, 2), (80, 80), BRAIN, sliding_window=100, has_sinks=True),
    "everything": layer(
        (10, 2),
        (33, 33),
        HALF,
        sliding_window=500,
        logits_soft_cap=20.0,
        has_alibi=True,
        has_sinks=True,
    ),
    "latent": layer((16, 1), (576, 512), BRAIN),
}
# Long and short decodes, chunks, a prompt of several tiles, and lengths around a block of 64 keys.
BATCH = [(1, 2100), (70, 300), (1, 3), (7, 1030), (130, 130), (1, 65), (3, 64), (0, 9)]


@pytest.fixture(params=LAYERS)
def call(request: pytest.FixtureRequest) -> AttentionCall:
    """On the CPU, with NaN where nothing may be read."""
    spec = LAYERS[request.param]
    return SweepCase(spec, BATCH, shared=request.param == "latent").call()


@pytest.fixture(params=[1, 2, 3], ids=lambda number: f"{number} threads")
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = anvil.get_num_threads()
    anvil.set_num_threads(request.param)
    yield request.param
    anvil.set_num_threads(before)


def computed(call: AttentionCall, device: torch.device = ANVIL) -> Tensor:
    placed = verification.place_call(call, device)
    batch_invariant(placed.call)
    return placed.call.output.cpu()


def rows_of(call: AttentionCall, request: int) -> slice:
    return slice(*call.query_start_loc[request : request + 2].tolist())


def selected(
    call: AttentionCall, requests: Sequence[int], padding: int = 0, bound: int = 0
) -> AttentionCall:
    """The requests of a call in another order, with rows of padding, and higher bounds."""
    index = torch.tensor(requests)
    places = [rows_of(call, request) for request in requests]
    lens = torch.tensor([place.stop - place.start for place in places])
    query = torch.cat([call.query[place] for place in places])
    query = torch.cat([query, torch.full((padding, *query.shape[1:]), torch.nan).to(query)])
    return dataclasses.replace(
        call,
        query=query,
        output=query.new_empty(*query.shape[:2], call.spec.value_head_size),
        block_table=call.block_table[index],
        query_start_loc=torch.cat([torch.zeros(1), lens.cumsum(0)]).int(),
        seq_lens=call.seq_lens[index],
        max_query_len=int(lens.max()) + bound,
        max_seq_len=int(call.seq_lens[index].max()) + bound,
    )


def chunk(call: AttentionCall, request: int, begin: int, end: int) -> AttentionCall:
    """Rows of a request, computed when it has no tokens behind them."""
    rows = rows_of(call, request)
    alone = selected(call, [request])
    return dataclasses.replace(
        alone,
        query=alone.query[begin:end],
        output=alone.output[begin:end],
        query_start_loc=torch.tensor([0, end - begin], dtype=torch.int32),
        seq_lens=alone.seq_lens - (rows.stop - rows.start - end),
        max_query_len=end - begin,
    )


def test_alone_and_in_a_batch(call: AttentionCall, threads: int) -> None:
    together = computed(call)
    for request, (rows, _) in enumerate(BATCH):
        if rows:
            alone = computed(selected(call, [request]))
            assert torch.equal(alone, together[rows_of(call, request)]), BATCH[request]


@pytest.mark.parametrize(
    ("order", "padding", "bound"),
    [
        ([7, 6, 5, 4, 3, 2, 1, 0], 0, 0),
        ([3, 0, 5], 4, 100),
        ([1, 7, 1, 4, 4, 0], 1, 5000),
        ([2, 5, 0, 2, 5, 0, 2, 5, 0, 2, 5, 0, 2, 5, 0], 0, 0),
    ],
    ids=["reversed", "fewer", "repeated", "decodes"],
)
def test_other_batches(
    call: AttentionCall, threads: int, order: list[int], padding: int, bound: int
) -> None:
    together = computed(call)
    other = selected(call, order, padding, bound)
    found = computed(other)
    for place, request in enumerate(order):
        expected = together[rows_of(call, request)]
        assert torch.equal(found[rows_of(other, place)], expected), BATCH[request]


@pytest.mark.parametrize("size", [1, 7, 48, 64, 100])
def test_prompts_in_chunks(call: AttentionCall, threads: int, size: int) -> None:
    together = computed(call)
    for request in (1, 3, 4):
        rows = BATCH[request][0]
        # Of single rows some will do.
        begins = range(0, rows, size) if size > 1 else (0, 1, rows // 2, rows - 1)
        for begin in begins:
            end = min(rows, begin + size)
            found = computed(chunk(call, request, begin, end))
            expected = together[rows_of(call, request)][begin:end]
            assert torch.equal(found, expected), (BATCH[request], begin, end)


def test_the_host_computes_the_same_bits(call: AttentionCall) -> None:
    assert torch.equal(computed(call, torch.device("cpu")), computed(call))


def test_not_causal_requests(threads: int) -> None:
    causal = [request % 2 == 0 for request in range(len(BATCH))]
    call = SweepCase(LAYERS["smollm2"], BATCH, causal).call()
    together = computed(call)
    for request, (rows, _) in enumerate(BATCH):
        if rows:
            alone = dataclasses.replace(selected(call, [request]), causal=causal[request])
            assert torch.equal(computed(alone), together[rows_of(call, request)]), BATCH[request]
