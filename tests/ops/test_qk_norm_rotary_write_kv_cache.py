# SPDX-License-Identifier: Apache-2.0
"""What the case table of qk_norm_rotary_write_kv_cache cannot say: that it is its steps bit for
bit, shared memory, refusals, commands."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_anvil.ops import cache, norm, rotary
from vllm_anvil.references import rotary as reference

HEADS, KV_HEADS, HEAD_SIZE, VALUE_SIZE, MAX_POSITION = 4, 2, 40, 24, 50
BLOCKS, BLOCK_SIZE, EPSILON = 5, 4, 1e-5
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Arguments = dict[str, Any]


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_arguments(
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    tokens: int = 6,
    normed: bool = True,
) -> Arguments:
    """Queries, keys and values are parts of a fused projection, the caches of one buffer."""
    sizes = (HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE, KV_HEADS * VALUE_SIZE)
    query, key, value = random(tokens, sum(sizes)).to(device, dtype).split(sizes, -1)
    shape = (BLOCKS, KV_HEADS, BLOCK_SIZE, HEAD_SIZE + VALUE_SIZE)
    by_token = random(*shape, seed=2).to(device, cache_dtype or dtype).transpose(1, 2)
    angles = reference.cos_sin_cache(reference.frequencies(HEAD_SIZE, 10000.0), MAX_POSITION)
    generator = torch.Generator().manual_seed(3)
    slots = torch.randperm(BLOCKS * BLOCK_SIZE, generator=generator)[:tokens]
    slots[1] = -1
    return {
        "positions": torch.randint(MAX_POSITION, (tokens,), generator=generator).to(device),
        "query": query,
        "key": key,
        "value": value,
        "key_cache": by_token[..., :HEAD_SIZE],
        "value_cache": by_token[..., HEAD_SIZE:],
        "slot_mapping": slots.to(device),
        "cos_sin_cache": angles.float().to(device),
        "is_neox": True,
        "query_weight": random(HEAD_SIZE, seed=4).to(device) if normed else None,
        "key_weight": random(HEAD_SIZE, seed=5).to(device) if normed else None,
        "epsilon": EPSILON if normed else None,
    }


def step_by_step(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    cos_sin_cache: Tensor,
    is_neox: bool,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    epsilon: float | None,
    **options: Any,
) -> None:
    offset = options.pop("weight_offset", 0.0)
    if epsilon is not None:
        for states, weight in ((query, query_weight), (key, key_weight)):
            heads = states.unflatten(-1, (-1, HEAD_SIZE))
            heads.copy_(norm.rms_norm(heads, weight, epsilon, weight_offset=offset))
    rotary.rotary_embedding(positions, query, key, HEAD_SIZE, cos_sin_cache, is_neox, **options)
    slots = len(slot_mapping)
    cache.write_kv_cache(
        key[:slots].unflatten(-1, (-1, HEAD_SIZE)).to(key_cache.dtype),
        value[:slots].unflatten(-1, (-1, VALUE_SIZE)).to(value_cache.dtype),
        key_cache,
        value_cache,
        slot_mapping,
    )


def assert_is_its_steps(arguments: Arguments, expected: Arguments) -> None:
    rotary.qk_norm_rotary_write_kv_cache(**arguments)
    step_by_step(**expected)
    for name in ("query", "key", "value", "key_cache", "value_cache"):
        bits = torch.int32 if arguments[name].element_size() == 4 else torch.int16
        # The whole of the memory that a part lies in.
        actual, right = (
            torch.empty(0, dtype=of[name].dtype).set_(of[name].cpu().untyped_storage())
            for of in (arguments, expected)
        )
        assert torch.equal(actual.view(bits), right.view(bits)), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_dtype", DTYPES)
def test_is_its_steps_bit_for_bit(
    device: torch.device, dtype: torch.dtype, cache_dtype: torch.dtype
) -> None:
    for is_neox, normed in itertools.product((True, False), repeat=2):
        both = [make_arguments(device, dtype, cache_dtype, 9, normed) for _ in range(2)]
        for arguments in both:
            arguments["is_neox"] = is_neox
        assert_is_its_steps(*both)


@pytest.mark.parametrize(
    "options",
    [
        {"weight_offset": 1.0},
        {"query_weight": None},
        {"query_weight": None, "key_weight": None},
        {"slot_mapping": [3, 1]},
        {"cos_sin_cache": 24},
        {"mrope_section": [8, 6, 6]},
        {"mrope_section": [8, 6, 6], "mrope_interleaved": True},
    ],
    ids=str,
)
def test_options_are_those_of_the_steps(device: torch.device, options: dict[str, Any]) -> None:
    both = [make_arguments(device, torch.bfloat16) for _ in range(2)]
    for arguments in both:
        arguments |= options
        if "slot_mapping" in options:
            arguments["slot_mapping"] = torch.tensor(options["slot_mapping"]).to(device)
        if "cos_sin_cache" in options:
            table = reference.cos_sin_cache(reference.frequencies(24, 10000.0), MAX_POSITION)
            arguments["cos_sin_cache"] = table.float().to(device)
        if "mrope_section" in options:
            positions = arguments["positions"]
            arguments["positions"] = torch.stack((positions, positions.flip(0), positions // 2))
    assert_is_its_steps(*both)


def test_a_replayed_graph_reads_and_checks_indices_anew() -> None:
    arguments = make_arguments(torch.device("anvil"), normed=False)
    rotary.qk_norm_rotary_write_kv_cache(**arguments)
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        rotary.qk_norm_rotary_write_kv_cache(**arguments)
    cached = arguments["key_cache"].clone()
    fresh = make_arguments(torch.device("anvil"), normed=False)
    arguments["query"].copy_(fresh["query"])
    arguments["slot_mapping"].copy_(torch.tensor([0, 1, 2, 3, -1, -1]))
    graph.replay()
    assert not torch.equal(arguments["key_cache"][0].cpu(), cached[0].cpu())
    query, key_cache = arguments["query"].clone(), arguments["key_cache"].clone()
    arguments["slot_mapping"].fill_(BLOCKS * BLOCK_SIZE)
    graph.replay()
    with pytest.raises(IndexError, match=r"slot_mapping\[0\] is 20, but must be below 20"):
        torch.anvil.synchronize()
    assert torch.equal(arguments["query"].cpu(), query.cpu())
    assert torch.equal(arguments["key_cache"].cpu(), key_cache.cpu())


Change = Callable[[Arguments], Arguments]
REFUSALS: dict[str, tuple[Change, type[Exception], str]] = {
    "slot past the end": (
        lambda a: {"slot_mapping": a["slot_mapping"].index_fill(0, a["positions"][:1] * 0 + 4, 20)},
        IndexError,
        r"slot_mapping\[4\] is 20, but must be below 20 \(num_blocks \* block_size\)",
    ),
    "position past the end": (
        lambda a: {"positions": a["positions"] + MAX_POSITION},
        IndexError,
        r"positions\[0\] is \d+, but must be below 50",
    ),
    "weight without epsilon": (
        lambda a: {"epsilon": None},
        ValueError,
        "there is a weight but no epsilon",
    ),
    "weight of another size": (
        lambda a: {"key_weight": a["key_weight"][:39]},
        ValueError,
        r"key_weight must have shape \[40\], the head size, but has \[39\]",
    ),
    "more slots than tokens": (
        lambda a: {"slot_mapping": a["slot_mapping"].repeat(2)},
        ValueError,
        "slot_mapping has 12 slots, but positions has 6 tokens",
    ),
    "fewer values than slots": (
        lambda a: {"value": a["value"][:5]},
        ValueError,
        "the number of tokens of value must be at least 6, but is 5",
    ),
    "cache of other heads": (
        lambda a: {"key_cache": a["key_cache"][:, :, :1]},
        ValueError,
        "key has 2 heads, but key_cache has shape",
    ),
    "caches of other blocks": (
        lambda a: {"value_cache": a["value_cache"][:4]},
        ValueError,
        "blocks and block size must agree",
    ),
    "quantised cache": (
        lambda a: {"key_cache": a["key_cache"].to(torch.float8_e4m3fn)},
        TypeError,
        "key_cache must be float32, bfloat16 or float16",
    ),
    "values that are queries": (
        lambda a: {"query": (q := a["query"].contiguous()), "value": q.view(-1)[:288].view(6, 48)},
        ValueError,
        "query is written and must not share memory with value",
    ),
    "caches that overlap": (
        lambda a: {"value_cache": a["key_cache"], "value": a["key"].clone()},
        ValueError,
        "key_cache is written and must not share memory with value_cache",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(device: torch.device, case: str) -> None:
    change, error, message = REFUSALS[case]
    arguments = make_arguments(device)
    arguments |= change(arguments)
    before = {name: arguments[name].clone() for name in ("query", "key", "key_cache")}
    with pytest.raises(error, match="anvil::qk_norm_rotary_write_kv_cache: .*" + message):
        rotary.qk_norm_rotary_write_kv_cache(**arguments)
        torch.anvil.synchronize()  # what depends on values is reported by the next wait
    for name, value in before.items():
        assert torch.equal(arguments[name].float().cpu(), value.float().cpu()), name
