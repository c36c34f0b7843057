# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_anvil.ops import cache
from vllm_anvil.references import cache as cache_reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.uint8]

# Name -> (shape of one buffer, how keys' and values' views are taken from it). h: heads, d: head
# size.
Layout = tuple[Callable[..., tuple[int, ...]], Callable[..., tuple[Tensor, Tensor]]]

SOURCES: dict[str, Layout] = {  # views [n, h, d]
    "contiguous": (lambda n, h, d: (2, n, h, d), lambda b, h, d: (b[0], b[1])),
    "fused_qkv": (lambda n, h, d: (n, 3, h, d), lambda b, h, d: (b[:, 1], b[:, 2])),
    "heads_outermost": (
        lambda n, h, d: (2, h, n, d),
        lambda b, h, d: (b[0].transpose(0, 1), b[1].transpose(0, 1)),
    ),
    "every_second_token": (
        lambda n, h, d: (2, 2 * n, h, d),
        lambda b, h, d: (b[0, 1::2], b[1, ::2]),
    ),
    "offset": (
        lambda n, h, d: (2, n + 3, h + 1, d + 5),
        lambda b, h, d: (b[0, 3:, 1:, 5:], b[1, 3:, :h, 2 : 2 + d]),
    ),
}

CACHES: dict[str, Layout] = {  # views [blocks, block_size, h, d]
    "tokens_then_heads": (
        lambda blocks, size, h, d: (2, blocks, size, h, d),
        lambda b, h, d: (b[0], b[1]),
    ),
    "heads_then_tokens": (
        lambda blocks, size, h, d: (2, blocks, h, size, d),
        lambda b, h, d: (b[0].transpose(1, 2), b[1].transpose(1, 2)),
    ),
    "keys_and_values_in_a_block": (
        lambda blocks, size, h, d: (blocks, 2, size, h, d),
        lambda b, h, d: (b[:, 0], b[:, 1]),
    ),
    "keys_and_values_in_a_row": (
        lambda blocks, size, h, d: (blocks, size, h, 2 * d),
        lambda b, h, d: (b[..., :d], b[..., d:]),
    ),
    "tokens_outermost": (
        lambda blocks, size, h, d: (2, size, blocks, h, d),
        lambda b, h, d: (b[0].transpose(0, 1), b[1].transpose(0, 1)),
    ),
    "padded": (
        lambda blocks, size, h, d: (2, blocks + 1, size + 2, h + 1, d + 3),
        lambda b, h, d: (b[0, 1:, 1:-1, 1:, 3:], b[1, :-1, 2:, :h, 1 : 1 + d]),
    ),
}


def random_bytes(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Any bit pattern, NaNs included: the op moves bytes."""
    random = torch.Generator().manual_seed(seed)
    rows = (*shape[:-1], shape[-1] * dtype.itemsize)
    return torch.randint(256, rows, generator=random, dtype=torch.uint8).view(dtype)


def random_slots(tokens: int, slots: int, skipped: int = 0) -> Tensor:
    """Distinct slots in random order, the cache's first and last among them; `skipped` are -1."""
    random = torch.Generator().manual_seed(tokens * 31 + slots)
    chosen = torch.randperm(slots - 2, generator=random)[: tokens - 2] + 1
    chosen = torch.cat([chosen, torch.tensor([slots - 1, 0])])
    chosen = chosen[torch.randperm(tokens, generator=random)]
    chosen[torch.randperm(tokens, generator=random)[:skipped]] = -1
    return chosen


def check(
    device: torch.device,
    dtype: torch.dtype,
    source: str,
    layout: str,
    slots: Tensor,
    sizes: tuple[int, int, int, int],
) -> None:
    blocks, block_size, heads, head_size = sizes
    source_shape, source_views = SOURCES[source]
    cache_shape, cache_views = CACHES[layout]
    tokens = random_bytes(source_shape(len(slots), heads, head_size), dtype, 1)
    expected = random_bytes(cache_shape(blocks, block_size, heads, head_size), dtype, 2)
    actual = expected.to(device, copy=True)
    cache_reference.write_kv_cache(
        *source_views(tokens, heads, head_size), *cache_views(expected, heads, head_size), slots
    )
    cache.write_kv_cache(
        *source_views(tokens.to(device), heads, head_size),
        *cache_views(actual, heads, head_size),
        slots.to(device),
    )
    # The whole buffer: what lies between the views must not change.
    assert torch.equal(actual.cpu().view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("layout", CACHES)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matches_reference(
    device: torch.device, dtype: torch.dtype, source: str, layout: str
) -> None:
    check(device, dtype, source, layout, random_slots(23, 7 * 8, skipped=4), (7, 8, 3, 40))


@pytest.mark.parametrize("layout", CACHES)
@pytest.mark.parametrize("head_size", [1, 3, 31, 64, 80, 96, 128, 129, 256])
@pytest.mark.parametrize("heads", [1, 5])
def test_head_sizes(device: torch.device, head_size: int, heads: int, layout: str) -> None:
    slots = random_slots(9, 3 * 5)
    check(device, torch.bfloat16, "fused_qkv", layout, slots, (3, 5, heads, head_size))


@pytest.mark.parametrize("layout", ["tokens_then_heads", "heads_then_tokens"])
def test_batch_split_over_workers(device: torch.device, layout: str) -> None:
    slots = random_slots(1500, 128 * 16, skipped=100)
    check(device, torch.bfloat16, "contiguous", layout, slots, (128, 16, 4, 64))


@pytest.mark.parametrize("slots", [[], [-1], [-1, -5, -(2**62)]])
def test_nothing_to_write(device: torch.device, slots: list[int]) -> None:
    chosen = torch.tensor(slots, dtype=torch.int64)
    check(device, torch.bfloat16, "contiguous", "tokens_then_heads", chosen, (2, 4, 2, 8))


# What numbers are converted from, and to.
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def all_sorts(*shape: int, dtype: torch.dtype) -> Tensor:
    """Numbers of every size that a cache may have to hold, and what are none."""
    random = torch.Generator().manual_seed(5)
    exponent = torch.randint(-24, 20, shape, generator=random)
    values = torch.ldexp(torch.randn(shape, generator=random), exponent)
    values.view(-1)[::13] = torch.round(values.view(-1)[::13])
    odd = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 448.0, 464.0, -465.0, 2e6])
    values.view(-1)[: len(odd)] = odd
    values.view(-1)[-len(odd) :] = odd
    return values.to(dtype)


def converted(source: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Element by element from the definition: divided, clamped, cast by torch."""
    quotient = source.float() / torch.tensor(scale, dtype=torch.float32)
    if dtype == torch.int8:
        return quotient.nan_to_num(nan=0.0).round().clamp(-128, 127).to(dtype)
    if dtype in FLOAT8:
        quotient = quotient.clamp(-LARGEST[dtype], LARGEST[dtype])
    return quotient.to(dtype)


def assert_same_numbers(actual: Tensor, expected: Tensor) -> None:
    """Bit by bit, but any NaN will do."""
    if expected.dtype.is_floating_point:
        actual, expected = actual.double(), expected.double()
        nan = expected.isnan()
        assert torch.equal(actual.isnan(), nan)
        actual, expected = (t.masked_fill(nan, 0).view(torch.int64) for t in (actual, expected))
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("layout", ["keys_and_values_in_a_row", "heads_then_tokens", "padded"])
@pytest.mark.parametrize("cache_dtype", [*FLOATS, *FLOAT8, torch.int8], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_converts(
    device: torch.device, dtype: torch.dtype, cache_dtype: torch.dtype, layout: str
) -> None:
    heads, head_size, blocks, block_size = 3, 43, 7, 4
    slots = random_slots(23, blocks * block_size, skipped=4)
    source_shape, source_views = SOURCES["fused_qkv"]
    cache_shape, cache_views = CACHES[layout]
    tokens = all_sorts(*source_shape(len(slots), heads, head_size), dtype=dtype)
    expected = random_bytes(cache_shape(blocks, block_size, heads, head_size), cache_dtype, 2)
    actual = expected.to(device, copy=True)
    scales = {"k_scale": 0.07, "v_scale": 1.0 if dtype != cache_dtype else 3.0}
    cache.write_kv_cache(
        *source_views(tokens.to(device), heads, head_size),
        *cache_views(actual, heads, head_size),
        slots.to(device),
        **scales,
    )
    views = zip(
        source_views(tokens, heads, head_size),
        cache_views(expected, heads, head_size),
        scales.values(),
        strict=True,
    )
    for source, wanted, scale in views:
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                row = converted(source[token], cache_dtype, scale)
                wanted[slot // block_size, slot % block_size].copy_(row)
    assert_same_numbers(actual.cpu(), expected)


@pytest.mark.parametrize("cache_dtype", [*FLOAT8, torch.int8], ids=str)
def test_the_reference_converts_alike(cache_dtype: torch.dtype) -> None:
    key = all_sorts(8, 2, 40, dtype=torch.bfloat16)
    caches = [random_bytes((2, 4, 2, 40), cache_dtype, seed).clone() for seed in (1, 2)]
    slots = torch.arange(8)
    cache_reference.write_kv_cache(key, key, *caches, slots, k_scale=0.07)
    for actual, scale in zip(caches, (0.07, 1.0), strict=True):
        assert_same_numbers(actual.view(8, 2, 40), converted(key, cache_dtype, scale))


@pytest.mark.parametrize("slots", [[], [-1, -5]])
def test_nothing_to_convert(device: torch.device, slots: list[int]) -> None:
    key = torch.ones(len(slots), 2, 16, device=device)
    caches = [random_bytes((2, 4, 2, 16), torch.int8, seed).to(device) for seed in (1, 2)]
    before = [one.cpu() for one in caches]
    chosen = torch.tensor(slots, dtype=torch.int64, device=device)
    cache.write_kv_cache(key, key, *caches, chosen, k_scale=0.5)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(caches, before, strict=True))


def test_one_side_may_be_converted_and_the_other_copied(device: torch.device) -> None:
    arguments = make_arguments(device)
    value = random_bytes((6, 2, 16), torch.float8_e4m3fn, 1)
    value_cache = torch.zeros(4, 8, 2, 16, dtype=torch.uint8).view(torch.float8_e4m3fn)
    arguments |= {"value": value.to(device), "value_cache": value_cache.to(device)}
    cache.write_kv_cache(**arguments, k_scale=0.5)
    slot = int(arguments["slot_mapping"][2])
    written = [arguments[n].cpu()[slot // 8, slot % 8] for n in ("key_cache", "value_cache")]
    assert_same_numbers(written[0], converted(arguments["key"][2].cpu(), torch.bfloat16, 0.5))
    assert torch.equal(written[1].view(torch.uint8), value[2].view(torch.uint8))


def make_arguments(device: torch.device, tokens: int = 6) -> dict[str, Any]:
    buffers = [
        random_bytes((4, 8, 2, 16), torch.bfloat16, 3),
        random_bytes((4, 8, 2, 16), torch.bfloat16, 4),
    ]
    keys = [random_bytes((6, 2, 16), torch.bfloat16, seed) for seed in (1, 2)]
    names = ("key", "value", "key_cache", "value_cache")
    arguments = {n: t.to(device) for n, t in zip(names, keys + buffers, strict=True)}
    return arguments | {"slot_mapping": random_slots(6, 32)[:tokens].to(device)}


def test_tokens_without_a_slot_are_padding(device: torch.device) -> None:
    padded, cut = make_arguments(device, tokens=4), make_arguments(device, tokens=4)
    cut |= {"key": cut["key"][:4], "value": cut["value"][:4]}
    cache.write_kv_cache(**padded)
    cache.write_kv_cache(**cut)
    for name in ("key_cache", "value_cache"):
        assert torch.equal(padded[name].view(torch.int16), cut[name].view(torch.int16))


def test_value_head_size_may_differ(device: torch.device) -> None:
    arguments = make_arguments(device)
    arguments |= {
        "value": arguments["value"][..., :7],
        "value_cache": arguments["value_cache"][..., :7],
    }
    expected = {n: t.cpu() for n, t in arguments.items()}
    cache_reference.write_kv_cache(**expected)
    cache.write_kv_cache(**arguments)
    for name in ("key_cache", "value_cache"):
        assert torch.equal(
            arguments[name].cpu().view(torch.int16), expected[name].view(torch.int16)
        )


REFUSALS = {
    "slot past the end": (
        lambda a: (
            a | {"slot_mapping": a["slot_mapping"].index_fill(0, a["slot_mapping"].argmin(), 32)}
        ),
        (
            IndexError,
            r"slot_mapping\[\d\] is 32, but must be below 32 \(num_blocks \* block_size\)",
        ),
    ),
    "32-bit slots": (
        lambda a: a | {"slot_mapping": a["slot_mapping"].int()},
        (TypeError, "slot_mapping must be Long, but is Int"),
    ),
    "more slots than tokens": (
        lambda a: a | {"key": a["key"][:5]},
        (ValueError, "the number of tokens of key must be at least 6, but is 5"),
    ),
    "fewer values than keys": (
        lambda a: a | {"value": a["value"][:3]},
        (ValueError, "the number of tokens of value must be at least 6, but is 3"),
    ),
    "a type that is not converted": (
        lambda a: a | {"value": a["value"].int()},
        (TypeError, "value_cache is BFloat16 but value is Int; .* convert first"),
    ),
    "a cache that nothing is converted to": (
        lambda a: a | {"key_cache": a["key_cache"].double()},
        (TypeError, "key_cache is Double but key is BFloat16; .* convert first"),
    ),
    "a scale of zero": (
        lambda a: a | {"k_scale": 0.0},
        (ValueError, "k_scale must be a positive float32, but is 0"),
    ),
    "a scale below float32": (
        lambda a: a | {"v_scale": 1e-60},
        (ValueError, "v_scale must be a positive float32, but is 1e-60"),
    ),
    "a scale that is no number": (
        lambda a: a | {"v_scale": float("nan")},
        (ValueError, "v_scale must be a positive float32, but is nan"),
    ),
    "a scale for bytes": (
        lambda a: a | {n: a[n].view(torch.uint8) for n in ("key", "key_cache")} | {"k_scale": 0.5},
        (TypeError, "k_scale is 0.5, but key is Byte like the cache, .* or a scale of 1"),
    ),
    "elements of 8 bytes": (
        lambda a: a | {"key": a["key"].double(), "key_cache": a["key_cache"].double()},
        (TypeError, "key must have elements of 1, 2 or 4 bytes, but is Double"),
    ),
    "two-dimensional keys": (
        lambda a: a | {"key": a["key"].flatten(1)},
        (ValueError, r"key must have 3 dimension\(s\), but its shape is \[6, 32\]"),
    ),
    "another number of heads": (
        lambda a: a | {"key": a["key"][:, :1]},
        (ValueError, r"key has shape \[6, 1, 16\] and key_cache \[4, 8, 2, 16\]"),
    ),
    "caches of different block size": (
        lambda a: a | {"value_cache": a["value_cache"][:, :4]},
        (ValueError, ".* but blocks and block size must agree"),
    ),
    "strided head": (
        lambda a: a | {"key": a["key"][..., ::2], "key_cache": a["key_cache"][..., :8]},
        (ValueError, "the last dimension of key must be contiguous"),
    ),
    "expanded cache": (
        lambda a: a | {"value_cache": a["value_cache"][:1].expand(4, -1, -1, -1)},
        (ValueError, "value_cache is written, but elements of it share memory"),
    ),
    "one cache for both": (
        lambda a: a | {"value_cache": a["key_cache"]},
        (ValueError, "key_cache is written and must not share memory with value_cache"),
    ),
    "keys from the cache": (
        lambda a: a | {"key": a["key_cache"][0, :6]},
        (ValueError, "key_cache is written and must not share memory with key"),
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(device: torch.device, case: str) -> None:
    change, (error, message) = REFUSALS[case]
    arguments = change(make_arguments(device))
    before = {n: t.cpu().clone() for n, t in arguments.items() if isinstance(t, Tensor)}
    with pytest.raises(error, match="anvil::write_kv_cache: " + message):
        cache.write_kv_cache(**arguments)
        torch.anvil.synchronize()  # what depends on values is reported by the next wait
    for name in ("key_cache", "value_cache"):
        after = arguments[name].cpu()
        assert torch.equal(
            after.contiguous().view(torch.uint8), before[name].contiguous().view(torch.uint8)
        )


def test_refuses_mixed_devices() -> None:
    arguments = make_arguments(torch.device("anvil"))
    arguments["slot_mapping"] = arguments["slot_mapping"].cpu()
    with pytest.raises(ValueError, match=r"slot_mapping must be on anvil:0 .* but is on cpu"):
        cache.write_kv_cache(**arguments)


def test_opcheck(device: torch.device) -> None:
    arguments = make_arguments(device)
    torch.library.opcheck(torch.ops.anvil.write_kv_cache.default, (), arguments)
    bytes_of = {n: torch.zeros(4, 8, 2, 16, dtype=torch.int8) for n in ("key_cache", "value_cache")}
    quantising = arguments | {n: t.to(device) for n, t in bytes_of.items()} | {"k_scale": 0.5}
    torch.library.opcheck(torch.ops.anvil.write_kv_cache.default, (), quantising)
    arguments["key_cache"] = (
        torch.zeros(4, 2, 8, 16, dtype=torch.bfloat16).to(device).transpose(1, 2)
    )
    torch.library.opcheck(torch.ops.anvil.write_kv_cache.default, (), arguments)
