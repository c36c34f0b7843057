# SPDX-License-Identifier: Apache-2.0
"""The reference against dense float64 attention that is computed token by token in numpy."""

import itertools
import math
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anvil_attention import batch_plan, reference

SENTINEL = 7.0
# Half a unit in the last place of the output, relative, and what float32 arithmetic adds.
TOLERANCE = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (1e-5, 1e-5),
    torch.float16: (2**-11, 1e-5),
    torch.bfloat16: (2**-8, 1e-5),
}


@dataclass
class Case:
    """A batch, its options and the seed of its data."""

    lens: list[tuple[int, int]]  # (query_len, seq_len) of each request
    num_kv_heads: int = 2
    queries_per_kv: int = 2
    head_size: int = 8
    value_head_size: int = 8
    block_size: int = 4
    layout: str = "token_major"
    dtype: torch.dtype = torch.float32
    causal: bool | list[bool] = True
    sliding_window: int | None = None
    soft_cap: float | None = None
    alibi: bool = False
    sinks: bool = False
    padding: int = 0
    tile_elements: int = batch_plan.TILE_ELEMENTS
    tile_rows: int = batch_plan.TILE_ROWS
    padding_keys: int = batch_plan.PADDING_KEYS
    seed: int = 0

    def causal_of(self, request: int) -> bool:
        return self.causal if isinstance(self.causal, bool) else self.causal[request]

    def visible(self, request: int, row: int) -> list[int]:
        query_len, seq_len = self.lens[request]
        position = seq_len - query_len + row
        keys = []
        for key in range(seq_len):
            if self.causal_of(request) and key > position:
                continue
            if self.sliding_window is not None and abs(key - position) >= self.sliding_window:
                continue
            keys.append(key)
        return keys


class Batch:
    """The tensors of a case. Whatever must not be read is NaN, or far out of range."""

    def __init__(self, case: Case) -> None:
        self.case = case
        rng = np.random.default_rng(case.seed)
        heads = case.num_kv_heads * case.queries_per_kv
        self.num_tokens = sum(query_len for query_len, _ in case.lens)
        rows = self.num_tokens + case.padding
        query = torch.full((rows, heads, case.head_size), math.nan, dtype=case.dtype)
        query[: self.num_tokens] = self._normal(rng, self.num_tokens, heads, case.head_size)
        self.query = query
        self.query_start_loc = torch.tensor(
            np.cumsum([0] + [query_len for query_len, _ in case.lens]), dtype=torch.int32
        )
        self.seq_lens = torch.tensor([seq_len for _, seq_len in case.lens], dtype=torch.int32)
        self.scale = case.head_size**-0.5 * 1.5

        blocks_of = [-(-seq_len // case.block_size) for _, seq_len in case.lens]
        num_blocks = sum(blocks_of) + 3
        # Block 0 is nobody's, as in the engine; the others are dealt in random order.
        deal = iter(rng.permutation(np.arange(1, num_blocks)).tolist())
        self.key_cache, self.value_cache = self._empty_caches(num_blocks)
        self.block_table = torch.full(
            (len(case.lens), max(blocks_of) + 2), 2**31 - 1, dtype=torch.int32
        )
        self.keys, self.values = [], []
        for request, (query_len, seq_len) in enumerate(case.lens):
            keys = self._normal(rng, seq_len, case.num_kv_heads, case.head_size)
            values = self._normal(rng, seq_len, case.num_kv_heads, case.value_head_size)
            self.keys.append(keys)
            self.values.append(values)
            seen = {k for row in range(query_len) for k in case.visible(request, row)}
            for index in range(blocks_of[request]):
                block = next(deal)
                tokens = range(index * case.block_size, min((index + 1) * case.block_size, seq_len))
                if seen.isdisjoint(tokens) and max(tokens) < min(seen, default=0):
                    # Slid out of every window: the engine has given this block to others.
                    self.block_table[request, index] = 0
                    continue
                self.block_table[request, index] = block
                for token in tokens:
                    self.key_cache[block, token % case.block_size] = keys[token]
                    self.value_cache[block, token % case.block_size] = values[token]

        self.slopes = torch.tensor(rng.uniform(0.01, 0.5, heads)) if case.alibi else None
        self.sinks = torch.tensor(rng.normal(size=heads)) if case.sinks else None

    def _normal(self, rng: np.random.Generator, *shape: int) -> torch.Tensor:
        return torch.tensor(rng.normal(size=shape)).to(self.case.dtype)

    def _empty_caches(self, num_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
        case = self.case
        n, h, k, v = case.block_size, case.num_kv_heads, case.head_size, case.value_head_size

        def nan(*shape: int) -> torch.Tensor:
            return torch.full(shape, math.nan, dtype=case.dtype)

        if case.layout == "separate":
            return nan(num_blocks, n, h, k), nan(num_blocks, n, h, v)
        if case.layout == "token_major":
            both = nan(num_blocks, n, h, k + v)
        elif case.layout == "head_major":
            both = nan(num_blocks, h, n, k + v).transpose(1, 2)
        elif case.layout == "head_outermost":
            both = nan(h, num_blocks, n, k + v).permute(1, 2, 0, 3)
        elif case.layout == "between_layers":
            both = nan(num_blocks, 3, n, h, k + v)[:, 1]
        else:
            assert case.layout == "odd_strides"
            both = nan(num_blocks, n, h, k + v + 1)[..., : k + v]
        return both[..., :k], both[..., k:]

    def run(self, device: torch.device, plan: batch_plan.BatchPlan | None = None) -> torch.Tensor:
        """The reference's output, in float64 on the host."""
        case = self.case

        def move(tensor: torch.Tensor) -> torch.Tensor:
            # Only a move of the whole storage keeps the strides under test.
            storage = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()).to(device)
            return storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

        output = torch.full(
            (*self.query.shape[:2], case.value_head_size),
            SENTINEL,
            dtype=case.dtype,
            device=device,
        )
        causal = (
            case.causal
            if isinstance(case.causal, bool)
            else torch.tensor(case.causal, device=device)
        )
        with (
            mock.patch.object(batch_plan, "TILE_ELEMENTS", case.tile_elements),
            mock.patch.object(batch_plan, "TILE_ROWS", case.tile_rows),
            mock.patch.object(batch_plan, "PADDING_KEYS", case.padding_keys),
            mock.patch.object(batch_plan, "MIN_TILE_KEYS", 1),
        ):
            reference.paged_attention(
                self.query.to(device),
                move(self.key_cache),
                move(self.value_cache),
                self.block_table.to(device),
                self.query_start_loc.to(device),
                self.seq_lens.to(device),
                self.scale,
                output,
                causal=causal,
                sliding_window=case.sliding_window,
                logits_soft_cap=case.soft_cap,
                alibi_slopes=None if self.slopes is None else self.slopes.float().to(device),
                sinks=None if self.sinks is None else self.sinks.to(case.dtype).to(device),
                plan=plan,
            )
        return output.cpu().double()

    def expected(self) -> np.ndarray:
        case = self.case
        heads = case.num_kv_heads * case.queries_per_kv
        out = np.full((len(self.query), heads, case.value_head_size), SENTINEL)
        query = self.query.double().numpy()
        slopes = None if self.slopes is None else self.slopes.float().double().numpy()
        sinks = None if self.sinks is None else self.sinks.to(case.dtype).double().numpy()
        for request, (query_len, seq_len) in enumerate(case.lens):
            keys = self.keys[request].double().numpy()
            values = self.values[request].double().numpy()
            for row in range(query_len):
                token = int(self.query_start_loc[request]) + row
                position = seq_len - query_len + row
                visible = case.visible(request, row)
                for head in range(heads):
                    logits = keys[visible, head // case.queries_per_kv] @ query[token, head]
                    logits = logits * self.scale
                    if case.soft_cap is not None:
                        logits = case.soft_cap * np.tanh(logits / case.soft_cap)
                    if slopes is not None:
                        logits = logits - slopes[head] * np.abs(np.array(visible) - position)
                    weights = np.exp(logits)
                    total = weights.sum() + (0 if sinks is None else np.exp(sinks[head]))
                    weights = weights / total if total > 0 else weights
                    out[token, head] = weights @ values[visible, head // case.queries_per_kv]
        return out


def check(case: Case, device: torch.device) -> None:
    batch = Batch(case)
    actual, expected = batch.run(device).numpy(), batch.expected()
    relative, absolute = TOLERANCE[case.dtype]
    # Rounding of the result; and of float32 sums of values of size 1, whatever they cancel to.
    np.testing.assert_allclose(actual, expected, rtol=relative, atol=absolute, err_msg=str(case))
    assert (actual[batch.num_tokens :] == SENTINEL).all(), "padding rows were written"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    def request(draw: st.DrawFn) -> tuple[int, int]:
        kind = draw(st.sampled_from(["decode", "decode", "prefill", "extend", "cross", "skipped"]))
        if kind == "skipped":
            return 0, draw(st.integers(0, 9))
        if kind == "decode":
            return 1, draw(st.integers(1, 60))
        query_len = draw(st.integers(1, 24))
        if kind == "cross":
            return query_len, draw(st.integers(0, 40))
        return query_len, query_len + (draw(st.integers(0, 40)) if kind == "extend" else 0)

    lens = draw(st.lists(st.composite(request)(), min_size=1, max_size=6))
    head_size = draw(st.sampled_from([1, 5, 8, 12, 24, 33]))
    return Case(
        lens=lens,
        num_kv_heads=draw(st.integers(1, 3)),
        queries_per_kv=draw(st.sampled_from([1, 2, 3, 7])),
        head_size=head_size,
        value_head_size=draw(st.sampled_from([head_size, head_size, 6])),
        block_size=draw(st.sampled_from([1, 2, 3, 16, 20])),
        layout=draw(
            st.sampled_from(
                [
                    "separate",
                    "token_major",
                    "head_major",
                    "head_outermost",
                    "between_layers",
                    "odd_strides",
                ]
            )
        ),
        dtype=draw(st.sampled_from(list(TOLERANCE))),
        causal=draw(
            st.one_of(
                st.booleans(), st.lists(st.booleans(), min_size=len(lens), max_size=len(lens))
            )
        ),
        sliding_window=draw(st.one_of(st.none(), st.sampled_from([1, 2, 7, 16, 100]))),
        soft_cap=draw(st.one_of(st.none(), st.sampled_from([0.5, 5.0, 30.0]))),
        alibi=draw(st.booleans()),
        sinks=draw(st.booleans()),
        padding=draw(st.integers(0, 3)),
        # From one key at a time to everything at once.
        tile_elements=draw(st.sampled_from([1, 200, 1500, batch_plan.TILE_ELEMENTS])),
        tile_rows=draw(st.sampled_from([1, 5, 16, batch_plan.TILE_ROWS])),
        padding_keys=draw(st.sampled_from([0, 4, batch_plan.PADDING_KEYS])),
        seed=draw(st.integers(0, 2**16)),
    )


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(case=cases())
def test_any_batch(device: torch.device, case: Case) -> None:
    check(case, device)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(lens=[(1, 700)] * 3 + [(1, 1), (1, 33)], padding=2), id="decode"),
        pytest.param(Case(lens=[(5, 5), (700, 700)], num_kv_heads=1), id="long_prefill"),
        pytest.param(Case(lens=[(1, 90), (40, 130), (0, 7), (1, 1), (9, 9)]), id="mixed"),
        pytest.param(Case(lens=[(4, 60)] * 4, causal=[True, False, True, False]), id="per_request"),
        pytest.param(
            Case(lens=[(600, 600)], num_kv_heads=1, sliding_window=20, tile_elements=40_000),
            id="rows_that_see_nothing_of_their_first_tile",
        ),
        pytest.param(Case(lens=[(3, 0), (1, 0), (2, 8)], sinks=True), id="no_keys_but_a_sink"),
        pytest.param(Case(lens=[(5, 2), (1, 0)]), id="more_queries_than_keys"),
        pytest.param(Case(lens=[(3, 0), (1, 0), (5, 2)], causal=False, padding=1), id="no_keys"),
    ],
)
def test_named_batches(device: torch.device, case: Case) -> None:
    check(case, device)


def test_rows_do_not_depend_on_the_order_of_requests(device: torch.device) -> None:
    lens = [(1, 40), (7, 30), (1, 3), (1, 40), (7, 7)]
    order = [3, 1, 4, 0, 2]
    batch = Batch(Case(lens=lens))
    rows = [range(int(a), int(b)) for a, b in itertools.pairwise(batch.query_start_loc)]
    original = batch.run(device)
    tokens = [token for request in order for token in rows[request]]
    batch.query = batch.query[tokens]
    batch.block_table = batch.block_table[order]
    batch.seq_lens = batch.seq_lens[order]
    batch.query_start_loc = torch.tensor(
        np.cumsum([0] + [lens[request][0] for request in order]), dtype=torch.int32
    )
    torch.testing.assert_close(batch.run(device), original[tokens], rtol=1e-6, atol=1e-6)


def test_one_plan_serves_layers_of_different_strides(device: torch.device) -> None:
    plan = None
    for layout in ("token_major", "head_major", "odd_strides"):
        batch = Batch(Case(lens=[(1, 20), (6, 11), (1, 9)], layout=layout))
        plan = plan or batch_plan.plan_batch(
            batch.query_start_loc.tolist(),
            batch.seq_lens.tolist(),
            batch.block_table.to(device),
            batch.case.block_size,
            num_heads=4,
            num_kv_heads=2,
            head_size=8,
        )
        actual = batch.run(device, plan).numpy()
        np.testing.assert_allclose(actual, batch.expected(), rtol=1e-5, atol=1e-5)


def test_decodes_of_similar_length_are_one_matmul_over_one_slice() -> None:
    table = torch.zeros(4, 40, dtype=torch.int32)
    lens = [300, 400, 90, 310]
    plan = batch_plan.plan_batch(
        [0, 1, 2, 3, 4], lens, table, 16, num_heads=9, num_kv_heads=3, head_size=64
    )
    [tile] = plan.tiles
    assert tile.rows == slice(0, 4)
    assert len(tile.keys) == 1


def test_temporaries_stay_within_the_bound() -> None:
    table = torch.arange(64 * 2048, dtype=torch.int32).view(64, 2048)
    starts = [0, *range(9000, 9064)]
    plan = batch_plan.plan_batch(
        starts,
        [20000] + [5000] * 20 + [100] * 43,
        table,
        16,
        num_heads=8,
        num_kv_heads=4,
        head_size=128,
    )
    covered = 0
    for tile in plan.tiles:
        covered += tile.num_reqs * tile.num_rows
        for keys in tile.keys:
            logits = tile.num_reqs * 8 * tile.num_rows * keys.position.shape[1]
            gathered = keys.position.numel() * 4 * 128
            assert max(logits, gathered) <= batch_plan.TILE_ELEMENTS
    assert covered == starts[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sliding_window": 0}, "sliding_window must be at least 1, got 0"),
        ({"logits_soft_cap": -1.0}, "logits_soft_cap must be positive, got -1.0"),
        ({"sinks": torch.zeros(3)}, r"sinks must be \[4\]"),
        ({"alibi_slopes": torch.zeros(2)}, r"alibi_slopes must be \[4\]"),
        ({"output": torch.zeros(2, 4, 9)}, "output must be"),
        ({"key_cache": torch.zeros(3, 4, 2, 9)}, "head_size 8"),
        ({"query": torch.zeros(2, 3, 8), "output": torch.zeros(2, 3, 8)}, "no multiple of 2"),
        ({"seq_lens": torch.ones(1, dtype=torch.int32)}, "describes 2 requests"),
    ],
)
def test_errors_name_the_argument(change: dict[str, object], message: str) -> None:
    arguments = {
        "query": torch.zeros(2, 4, 8),
        "key_cache": torch.zeros(3, 4, 2, 8),
        "value_cache": torch.zeros(3, 4, 2, 8),
        "block_table": torch.zeros(2, 1, dtype=torch.int32),
        "query_start_loc": torch.tensor([0, 1, 2], dtype=torch.int32),
        "seq_lens": torch.ones(2, dtype=torch.int32),
        "scale": 1.0,
        "output": torch.zeros(2, 4, 8),
    }
    with pytest.raises(ValueError, match=message):
        reference.paged_attention(**{**arguments, **change})
