# SPDX-License-Identifier: Apache-2.0
"""Model shapes, and the calls that are made of them."""

import dataclasses
import itertools

import pytest
import torch

from anvil_attention.bench.batch_spec import parse
from anvil_attention.bench.model_shapes import MODEL_SHAPES, ModelShape, model_shape
from anvil_attention.bench.problem import BEYOND_CACHE, Problem, make_rotation, sets_needed
from anvil_attention.bench.suite import KV_DTYPES, LayerOptions
from anvil_attention.reference_implementation import reference_attention
from anvil_attention.synthetic_batch import LAYOUTS, Request, first_visible, make_call

SMALL = ModelShape("small", 4, 2, 8)
BATCH = (Request(1, 37), Request(6, 6), Request(3, 19))


def _spec(**changes: object):
    spec = SMALL.spec(torch.float32, torch.float32, 4, "cpu")
    return dataclasses.replace(spec, **changes)


@pytest.mark.parametrize("shape", MODEL_SHAPES.values(), ids=lambda shape: shape.name)
def test_shapes_make_layers(shape: ModelShape) -> None:
    spec = shape.spec(torch.bfloat16, torch.bfloat16, 16, "cpu")
    assert spec.num_heads % spec.num_kv_heads == 0
    assert 0 < spec.scale < 1
    assert model_shape(shape.name.upper()) is shape


def test_shapes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"no model shape 'llama3-8b' \(is llama-3-8b meant\?\)"):
        model_shape("llama3-8b")
    with pytest.raises(ValueError, match="9 heads are no multiple of 2 kv-heads"):
        ModelShape("odd", 9, 2, 64).spec(torch.float16, torch.float16, 16, "cpu")
    with pytest.raises(ValueError, match="block-size must be at least 1, got 0"):
        SMALL.spec(torch.float16, torch.float16, 0, "cpu")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"sliding_window": 4096, "logits_soft_cap": 50.0, "kv_dtype": torch.bfloat16}),
        ({"window": 0, "soft_cap": 0.0}, {"sliding_window": None, "logits_soft_cap": None}),
        ({"window": 7, "sinks": True, "alibi": True}, {"sliding_window": 7, "has_sinks": True}),
        ({"kv_dtype": "fp8_e5m2"}, {"kv_dtype": torch.float8_e5m2, "dtype": torch.bfloat16}),
    ],
)
def test_options_change_the_models_own(options: dict, expected: dict) -> None:
    problem = LayerOptions(**options).problem(model_shape("gemma-2-9b"), "q3", "cpu")
    assert {name: getattr(problem.spec, name) for name in expected} == expected


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", [None, 9])
def test_all_that_must_not_be_read_is_poisoned(layout: str, window: int | None) -> None:
    spec = _spec(sliding_window=window, value_head_size=6)
    call = make_call(spec, BATCH, seed=3, layout=layout, padding=2)
    cache_shape = (call.key_cache.shape[0], spec.block_size, spec.num_kv_heads)
    assert call.key_cache.shape == (*cache_shape, 8)
    assert call.value_cache.shape == (*cache_shape, 6)
    visible = torch.zeros(cache_shape[:2], dtype=torch.bool)
    for request, table in zip(BATCH, call.block_table, strict=False):
        for token in range(first_visible(spec, request), request.seq_len):
            visible[int(table[token // 4]), token % 4] = True
    assert int(visible.sum()) == sum(r.seq_len - first_visible(spec, r) for r in BATCH)
    for cache in (call.key_cache, call.value_cache):
        assert bool(cache[visible].isfinite().all())
        assert bool(cache[~visible].isnan().all())
    # The query is a view of rows that hold more, and its padding must not be read either.
    rows = sum(r.query_len for r in BATCH)
    assert bool(call.query[:rows].isfinite().all())
    assert bool(call.query[rows:].isnan().all())
    assert call.query.stride() == (4 * 8 + 2 * (8 + 6), 8, 1)
    assert call.query_start_loc.tolist() == [0, 1, 7, 10, 10]
    assert call.seq_lens.tolist() == [37, 6, 19, 0]


def test_blocks_are_permuted_and_no_two_requests_share_one() -> None:
    spec = _spec()
    call = make_call(spec, [Request(1, 200)] * 4, seed=0)
    used = call.block_table[:, :50].flatten().tolist()
    assert len(set(used)) == 200
    assert 0 not in used
    assert sum(b - a == 1 for a, b in itertools.pairwise(used)) < 20
    other = make_call(spec, [Request(1, 200)] * 4, seed=1)
    assert not torch.equal(call.block_table, other.block_table)


def test_blocks_that_slid_out_of_the_window_are_nobodys() -> None:
    call = make_call(_spec(sliding_window=5), [Request(1, 40)], seed=0)
    assert call.block_table[0, :8].tolist() == [0] * 8
    assert call.block_table[0, 8] != 0


@pytest.mark.parametrize("kv_dtype", KV_DTYPES.values(), ids=str)
def test_the_same_seed_gives_the_same_call(kv_dtype: torch.dtype) -> None:
    spec = _spec(kv_dtype=kv_dtype, has_sinks=True, has_alibi=True)
    first, second = (make_call(spec, BATCH, seed=5) for _ in range(2))
    for field in dataclasses.fields(first):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if isinstance(a, torch.Tensor) and field.name != "output":
            assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"requests": []}, "at least one request"),
        ({"requests": [Request(5, 4)]}, "5 query tokens in a sequence of 4"),
        ({"requests": BATCH, "layout": "LBNCH"}, "no cache layout 'LBNCH'"),
    ],
)
def test_calls_that_cannot_be(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_call(_spec(), seed=0, **arguments)


def test_inputs_exceed_the_cache_as_far_as_memory_allows() -> None:
    assert sets_needed(moved=10, allocated=20, cache=100, memory=10**6) == BEYOND_CACHE * 10
    assert sets_needed(moved=10, allocated=20, cache=100, memory=110) == 5
    assert sets_needed(moved=1000, allocated=2000, cache=100, memory=10**6) == 2
    assert sets_needed(moved=1000, allocated=2000, cache=100, memory=2001) == 1


def test_rotation(device: torch.device) -> None:
    spec = dataclasses.replace(_spec(), device=device.type)
    problem = Problem("small", spec, parse("2q1s20_q5"))
    moved = problem.cost.moved_bytes
    rotation = make_rotation(problem, device, [reference_attention], cache=2 * moved, memory=10**7)
    assert len(rotation.calls) == 2 * BEYOND_CACHE
    assert rotation.total_bytes == 2 * BEYOND_CACHE * moved
    assert rotation.beyond_cache
    queries = [call.query.cpu() for call in rotation.calls]
    assert not torch.equal(queries[0], queries[1])
    assert all(call.query.device.type == device.type for call in rotation.calls)
    strides = rotation.first.host.key_cache.stride()
    assert all(call.key_cache.stride() == strides for call in rotation.calls)
    with pytest.raises(MemoryError, match="small 2q1s20_q5 needs"):
        make_rotation(problem, device, [], cache=1, memory=100)
