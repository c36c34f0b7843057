# SPDX-License-Identifier: Apache-2.0
"""A decode step as a graph: a small transformer with a paged cache that feeds itself.

Everything that changes between steps (tokens, positions, lengths, slots) is in device memory and
changed by the step itself, so that replaying it n times generates n tokens for each sequence.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest
import torch
from torch.nn.functional import embedding, silu

import vllm_anvil.device  # noqa: F401

LAYERS, HEADS, SIZE, VOCABULARY = 2, 2, 16, 97
HIDDEN = HEADS * SIZE
BLOCK, BLOCKS_PER_SEQUENCE = 4, 8
CAPACITY = BLOCK * BLOCKS_PER_SEQUENCE
REPLAYS = 10_000


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"embedding": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        shapes |= {f"qkv{layer}": (HIDDEN, 3 * HIDDEN), f"out{layer}": (HIDDEN, HIDDEN)}
        shapes |= {f"up{layer}": (HIDDEN, 4 * HIDDEN), f"down{layer}": (2 * HIDDEN, HIDDEN)}
    return {
        name: torch.randn(*shape, generator=generator).div(shape[0] ** 0.5).to("anvil")
        for name, shape in shapes.items()
    }


@dataclass
class State:
    """What a batch of sequences carries from step to step."""

    tokens: torch.Tensor  # [batch] int64
    positions: torch.Tensor  # [batch] int64
    slots: torch.Tensor  # [batch] int64
    block_table: torch.Tensor  # [batch, BLOCKS_PER_SEQUENCE] int32
    caches: list[torch.Tensor]  # by layer: [2, blocks, BLOCK, HEADS, SIZE]

    @classmethod
    def fresh(cls, batch: int) -> State:
        order = torch.randperm(batch * BLOCKS_PER_SEQUENCE, generator=torch.manual_seed(1))
        shape = (2, batch * BLOCKS_PER_SEQUENCE, BLOCK, HEADS, SIZE)
        return cls(
            (torch.arange(batch) % VOCABULARY).to("anvil"),
            torch.zeros(batch, dtype=torch.int64, device="anvil"),
            torch.zeros(batch, dtype=torch.int64, device="anvil"),
            order.view(batch, -1).int().to("anvil"),
            [torch.zeros(shape, device="anvil") for _ in range(LAYERS)],
        )

    def tensors(self) -> list[torch.Tensor]:
        return [self.tokens, self.positions, self.slots, *self.caches]


def normalised(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def decode(state: State, weight: dict[str, torch.Tensor]) -> None:
    """One token for each sequence; when a sequence has filled its blocks it begins anew."""
    batch = state.tokens.shape[0]
    block = state.block_table.gather(1, (state.positions // BLOCK).unsqueeze(1)).squeeze(1)
    state.slots.copy_(block * BLOCK + state.positions % BLOCK)
    every = torch.arange(CAPACITY, device="anvil")
    unseen = every > state.positions.unsqueeze(1)
    rows = (state.block_table.unsqueeze(2) * BLOCK + every[:BLOCK]).view(batch, CAPACITY)
    x = embedding(state.tokens, weight["embedding"])
    for layer, cache in enumerate(state.caches):
        q, k, v = (normalised(x) @ weight[f"qkv{layer}"]).view(batch, 3, HEADS, SIZE).unbind(1)
        torch.ops.anvil.write_kv_cache(k, v, cache[0], cache[1], state.slots)
        keys, values = (
            side.view(-1, HIDDEN).index_select(0, rows.flatten()).view(batch, -1, HEADS, SIZE)
            for side in cache
        )
        scores = (keys * q.unsqueeze(1)).sum(-1) / SIZE**0.5
        scores = scores.masked_fill(unseen.unsqueeze(2), float("-inf")).softmax(1)
        x = x + (scores.unsqueeze(-1) * values).sum(1).view(batch, HIDDEN) @ weight[f"out{layer}"]
        gate, up = (normalised(x) @ weight[f"up{layer}"]).chunk(2, dim=-1)
        x = x + (silu(gate) * up) @ weight[f"down{layer}"]
    state.tokens.copy_((normalised(x) @ weight["embedding"].T).argmax(-1))
    state.positions.add_(1).remainder_(CAPACITY)


def capture(batch: int, weight: dict[str, torch.Tensor], pool: tuple[int, int] | None = None):
    state = State.fresh(batch)
    kept = [tensor.clone() for tensor in state.tensors()]
    decode(state, weight)  # the device learns the calls
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph, pool=pool):
        decode(state, weight)
    for tensor, before in zip(state.tensors(), kept, strict=True):
        tensor.copy_(before)
    return graph, state


def test_ten_thousand_replays_equal_ten_thousand_eager_steps() -> None:
    weight = weights()
    graph, state = capture(3, weight)
    graph.replay()  # what the first run of a kernel learns, it learns here
    torch.anvil.synchronize()
    before, frames = torch.anvil.memory_stats(), []
    replay = graph.replay
    sys.setprofile(lambda frame, event, argument: frames.append((event, frame.f_code.co_name)))
    for _ in range(REPLAYS - 1):
        replay()
    sys.setprofile(None)
    torch.anvil.synchronize()
    after = torch.anvil.memory_stats()
    for name in ("allocation.all.allocated", "segment.all.allocated", "reserved_bytes.all.peak"):
        assert before[name] == after[name]
    assert not [name for event, name in frames if event == "call"]  # no Python function ran

    eager, seen = State.fresh(3), set()
    for step in range(REPLAYS):
        decode(eager, weight)
        if step < 200:
            seen.add(tuple(eager.tokens.tolist()))
    assert len(seen) > 20  # the steps differ, so that reading stale inputs would show
    for ours, theirs in zip(state.tensors(), eager.tensors(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("order", ["descending", "ascending"])
def test_all_batch_sizes_share_the_arena_of_the_largest(order: str) -> None:
    weight = weights()
    sizes = sorted([1, 2, 4, 8, 16, 32, 64, 128, 256, 512], reverse=order == "descending")
    alone, state = capture(512, weight)
    largest = alone.pool_bytes()[1]
    assert largest > 10 << 20  # many of the granules in which an arena grows
    del alone, state
    pool = torch.anvil.graph_pool_handle()
    captured = [capture(batch, weight, pool) for batch in sizes]
    assert captured[0][0].pool_bytes()[1] <= 1.2 * largest
    for graph, state in captured:
        batch = state.tokens.shape[0]
        eager = State.fresh(batch)
        for _ in range(5):
            graph.replay()
            decode(eager, weight)
        for ours, theirs in zip(state.tensors(), eager.tensors(), strict=True):
            assert torch.equal(ours, theirs), batch
