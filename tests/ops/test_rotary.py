# SPDX-License-Identifier: Apache-2.0
"""What the case table of rotary_embedding cannot say: shared memory, refusals, commands."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_anvil.ops import rotary
from vllm_anvil.references import rotary as reference

HEADS, KV_HEADS, HEAD_SIZE, MAX_POSITION = 4, 2, 40, 50


def table(rotary_dim: int = HEAD_SIZE) -> Tensor:
    return reference.cos_sin_cache(reference.frequencies(rotary_dim, 10000.0), MAX_POSITION).float()


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def positions(tokens: int) -> Tensor:
    return torch.randint(MAX_POSITION, (tokens,), generator=torch.Generator().manual_seed(tokens))


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_parts_of_a_fused_projection(
    device: torch.device, dtype: torch.dtype, is_neox: bool
) -> None:
    tokens, sizes = 9, [n * HEAD_SIZE for n in (HEADS, KV_HEADS, KV_HEADS)]
    fused = random(tokens, sum(sizes)).to(dtype)
    query, key, value = (part.clone() for part in fused.split(sizes, -1))
    at = positions(tokens)
    reference.rotary_embedding(at, query, key, HEAD_SIZE, table(), is_neox)

    actual = fused.to(device)
    q, k, _ = actual.split(sizes, -1)
    rotary.rotary_embedding(at.to(device), q, k, HEAD_SIZE, table().to(device), is_neox)
    torch.testing.assert_close(actual.cpu(), torch.cat((query, key, value), -1))
    assert torch.equal(actual.split(sizes, -1)[2].cpu(), value)


def test_heads_of_a_shared_buffer(device: torch.device) -> None:
    """Three dimensions, heads outermost, and a part of every head turned."""
    tokens = 7
    buffer = random(HEADS + KV_HEADS, tokens, HEAD_SIZE + 8)
    view = buffer[..., 8:].transpose(0, 1)
    query, key = view[:, :HEADS].clone(), view[:, HEADS:].clone()
    at = positions(tokens)
    reference.rotary_embedding(at, query, key, HEAD_SIZE, table(24), True)

    actual = buffer.to(device)
    view = actual[..., 8:].transpose(0, 1)
    rotary.rotary_embedding(
        at.to(device), view[:, :HEADS], view[:, HEADS:], HEAD_SIZE, table(24).to(device), True
    )
    torch.testing.assert_close(view.cpu(), torch.cat((query, key), 1))
    assert torch.equal(actual[..., :8].cpu(), buffer[..., :8])


def test_query_and_key_of_different_dtypes(device: torch.device) -> None:
    at = positions(5)
    query, key = random(5, HEADS * HEAD_SIZE), random(5, KV_HEADS * HEAD_SIZE).bfloat16()
    q, k = query.to(device), key.to(device)
    reference.rotary_embedding(at, query, key, HEAD_SIZE, table(), True)
    rotary.rotary_embedding(at.to(device), q, k, HEAD_SIZE, table().to(device), True)
    torch.testing.assert_close(q.cpu(), query)
    torch.testing.assert_close(k.cpu(), key)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_positions_of_any_stride(device: torch.device, dtype: torch.dtype) -> None:
    """As the engine keeps them: the first columns of a larger buffer."""
    tokens, section = 6, [8, 6, 6]
    buffer = torch.full((3, 2 * tokens + 5), 10**6).to(dtype)
    buffer[:, 1 : 2 * tokens + 1 : 2] = positions(3 * tokens).view(3, tokens)
    at = buffer.to(device)[:, 1 : 2 * tokens + 1 : 2]
    query = random(tokens, HEADS * HEAD_SIZE)
    actual = query.to(device)
    reference.rotary_embedding(
        at.cpu(), query, None, HEAD_SIZE, table(), True, mrope_section=section
    )
    rotary.rotary_embedding(at, actual, None, HEAD_SIZE, table().to(device), True, section)
    torch.testing.assert_close(actual.cpu(), query)
    one = random(tokens, HEADS * HEAD_SIZE, seed=2)
    actual = one.to(device)
    reference.rotary_embedding(at[2].cpu(), one, None, HEAD_SIZE, table(), True)
    # The sections of a model are given for text too, whose positions are of one row.
    rotary.rotary_embedding(at[2], actual, None, HEAD_SIZE, table().to(device), True, section)
    torch.testing.assert_close(actual.cpu(), one)


def test_a_replayed_graph_reads_and_checks_positions_anew() -> None:
    at = torch.zeros(4, dtype=torch.int64, device="anvil")
    query = torch.zeros(4, HEAD_SIZE, device="anvil")
    angles = table().to("anvil")
    rotary.rotary_embedding(at, query, None, HEAD_SIZE, angles, True)
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        rotary.rotary_embedding(at, query, None, HEAD_SIZE, angles, True)
    for seed in (1, 2):
        expected, chosen = random(4, HEAD_SIZE, seed=seed), positions(4 + seed)[:4]
        query.copy_(expected)
        at.copy_(chosen)
        graph.replay()
        reference.rotary_embedding(chosen, expected, None, HEAD_SIZE, table(), True)
        torch.testing.assert_close(query.cpu(), expected)
    at.fill_(MAX_POSITION)
    graph.replay()
    with pytest.raises(IndexError, match=rf"positions\[0\] is {MAX_POSITION}, but must be below"):
        torch.anvil.synchronize()
    torch.testing.assert_close(query.cpu(), expected)


def make_arguments(tokens: int = 6) -> dict[str, Any]:
    return {
        "positions": positions(tokens),
        "query": random(tokens, HEADS * HEAD_SIZE),
        "key": random(tokens, KV_HEADS * HEAD_SIZE, seed=2),
        "head_size": HEAD_SIZE,
        "cos_sin_cache": table(),
        "is_neox": True,
    }


Change = Callable[[dict[str, Any]], dict[str, Any]]
REFUSALS: dict[str, tuple[Change, type[Exception], str]] = {
    "position past the end": (
        lambda a: {"positions": a["positions"].index_fill(0, torch.tensor([4, 5]), MAX_POSITION)},
        IndexError,
        r"positions\[4\] is 50, but must be below 50 \(rows of cos_sin_cache\)",
    ),
    "negative position": (
        lambda a: {"positions": a["positions"].int().index_fill(0, torch.tensor([1]), -2)},
        IndexError,
        r"positions\[1\] is -2, but must be at least 0",
    ),
    "position of one axis": (
        lambda a: {
            "positions": torch.stack((a["positions"], a["positions"] + 100, a["positions"])),
            "mrope_section": [8, 6, 6],
        },
        IndexError,
        r"positions\[1\]\[0\] is \d+, but must be below 50",
    ),
    "positions that are no integers": (
        lambda a: {"positions": a["positions"].float()},
        TypeError,
        "positions must be int64 or int32, but is Float",
    ),
    "positions of two axes": (
        lambda a: {"positions": a["positions"].expand(2, -1)},
        ValueError,
        r"positions must have shape \[tokens\] or \[3, tokens\], but has \[2, 6\]",
    ),
    "three axes and no sections": (
        lambda a: {"positions": a["positions"].expand(3, -1)},
        ValueError,
        r"mrope_section must be three numbers .* but is \[\]",
    ),
    "sections of another sum": (
        lambda a: {"positions": a["positions"].expand(3, -1), "mrope_section": [8, 6, 5]},
        ValueError,
        r"mrope_section must sum to half the rotary dimension, 20, but is \[8, 6, 5\]",
    ),
    "negative section": (
        lambda a: {"positions": a["positions"].expand(3, -1), "mrope_section": [22, -1, -1]},
        ValueError,
        "a number of mrope_section must be at least 0, but is -1",
    ),
    "float64 query": (
        lambda a: {"query": a["query"].double()},
        TypeError,
        "query must be float32, bfloat16 or float16, but is Double",
    ),
    "float64 table": (
        lambda a: {"cos_sin_cache": a["cos_sin_cache"].double()},
        TypeError,
        "cos_sin_cache must be float32, bfloat16 or float16, but is Double",
    ),
    "integer key": (
        lambda a: {"key": a["key"].int()},
        TypeError,
        "key must be float32, bfloat16 or float16, but is Int",
    ),
    "odd rotary dimension": (
        lambda a: {"cos_sin_cache": a["cos_sin_cache"][:, :39]},
        ValueError,
        "the rotary dimension, the last of cos_sin_cache, must be even, but is 39",
    ),
    "more than a head": (
        lambda a: {"cos_sin_cache": table(42)},
        ValueError,
        "cos_sin_cache, is 42, which is more than the head size of 40",
    ),
    "table of one dimension": (
        lambda a: {"cos_sin_cache": a["cos_sin_cache"][0]},
        ValueError,
        "cos_sin_cache must have 2 dimension",
    ),
    "transposed table": (
        lambda a: {"cos_sin_cache": a["cos_sin_cache"].T.contiguous().T},
        ValueError,
        "the last dimension of cos_sin_cache must be contiguous",
    ),
    "another number of tokens": (
        lambda a: {"key": a["key"][:5]},
        ValueError,
        "key has 5 tokens, but positions has 6",
    ),
    "no whole heads": (
        lambda a: {"query": a["query"][:, :150]},
        ValueError,
        "the last dimension of query is 150, which is not a multiple of the head size of 40",
    ),
    "another head size": (
        lambda a: {"query": a["query"].unflatten(1, (8, 20))},
        ValueError,
        "the last dimension of query is 20, which is not the head size of 40",
    ),
    "no head size": (
        lambda a: {"head_size": 0},
        ValueError,
        "head_size must be at least 1, but is 0",
    ),
    "four dimensions": (
        lambda a: {"query": a["query"].view(6, 2, 2, 40)},
        ValueError,
        "query must have shape .* but has",
    ),
    "strided query": (
        lambda a: {"query": a["query"].T.contiguous().T},
        ValueError,
        "the last dimension of query must be contiguous",
    ),
    "expanded query": (
        lambda a: {"query": a["query"][:1].expand(6, -1)},
        ValueError,
        "query is written, but elements of it share memory",
    ),
    "query and key the same": (
        lambda a: {"key": a["query"]},
        ValueError,
        "query is written and must not share memory with key",
    ),
}


def on(value: object, device: torch.device, moved: dict[int, Tensor]) -> object:
    """A tensor moved with its strides; one tensor stays one."""
    if not isinstance(value, Tensor):
        return value
    if id(value) not in moved:
        base = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage()).to(device)
        moved[id(value)] = base.as_strided(value.shape, value.stride(), value.storage_offset())
    return moved[id(value)]


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(device: torch.device, case: str) -> None:
    change, error, message = REFUSALS[case]
    before = make_arguments()
    before |= change(before)
    moved: dict[int, Tensor] = {}
    arguments = {name: on(value, device, moved) for name, value in before.items()}
    with pytest.raises(error, match="anvil::rotary_embedding: .*" + message):
        rotary.rotary_embedding(**arguments)
        torch.anvil.synchronize()  # what depends on values is reported by the next wait
    for name in ("query", "key"):
        assert torch.equal(arguments[name].cpu(), before[name]), name


@pytest.mark.parametrize("name", ["positions", "key", "cos_sin_cache"])
def test_refuses_mixed_devices(name: str) -> None:
    arguments = {
        n: v.to("anvil") if isinstance(v, Tensor) and n != name else v
        for n, v in make_arguments().items()
    }
    with pytest.raises(ValueError, match=rf"{name} must be on anvil:0 .* but is on cpu"):
        rotary.rotary_embedding(**arguments)


def test_opcheck(device: torch.device) -> None:
    arguments = {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in make_arguments().items()
    }
    op = torch.ops.anvil.rotary_embedding.default
    torch.library.opcheck(op, (), arguments)
    torch.library.opcheck(op, (), arguments | {"key": None, "is_neox": False})
    three = arguments["positions"].expand(3, -1).contiguous()
    torch.library.opcheck(
        op,
        (),
        arguments | {"positions": three, "mrope_section": [8, 6, 6]},
        test_utils="test_schema",
    )
