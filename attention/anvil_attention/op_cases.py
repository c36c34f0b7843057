# SPDX-License-Identifier: Apache-2.0
"""The calls of ``torch.ops.anvil.paged_attention`` that parity, tests and documents go through.

Importing this registers the op: a process that uses the library `_C` has loaded it before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vllm_anvil.testing.op_case import UNIT, Arguments, Case, Inputs, Op

from . import paged_attention_op
from .contract import AttentionSpec
from .synthetic_batch import Request, make_call
from .triton_kernels import triton_attention

paged_attention_op.register()

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Batches, as (query tokens, tokens) of each request.
DECODE = ((1, 1), (1, 16), (1, 17), (1, 61))
PREFILL = ((33, 33), (5, 5))
MIXED = ((1, 40), (7, 7), (0, 9), (20, 50), (1, 3))


def _case(
    name: str,
    lens: Sequence[tuple[int, int]],
    dtype: torch.dtype = torch.float32,
    *,
    heads: tuple[int, int] = (6, 2),
    sizes: tuple[int, int] = (32, 32),
    block_size: int = 16,
    kv_dtype: torch.dtype | None = None,
    kind: str = "ordinary",
    change: Callable[[Arguments], Arguments] = lambda arguments: arguments,
    causal: bool | Sequence[bool] = True,
    padding: int = 0,
    layout: str = "LBHNC",
    scales: tuple[float, float] = (1.0, 1.0),
    raises: type[Exception] | None = None,
    **options: Any,
) -> Case:
    """A call with random data.

    Args:
        heads: of queries, and of keys and values.
        sizes: of a head of a key, and of a value.
        change: what becomes of the arguments in the end.
        scales: of keys and values in the cache.
        options: further attributes of `AttentionSpec`.
    """
    spec = AttentionSpec(
        *heads,
        *sizes,
        block_size,
        dtype,
        kv_dtype or dtype,
        scale=sizes[0] ** -0.5,
        device="cpu",
        **options,
    )

    def make(inputs: Inputs) -> Arguments:
        call = make_call(
            spec,
            [Request(*one) for one in lens],
            seed=inputs.generator.initial_seed(),
            layout=layout,
            padding=padding,
            causal=causal,
            k_scale=scales[0],
            v_scale=scales[1],
        )
        # Padding keeps whatever it holds, so it has to hold something.
        call.output.copy_(inputs.normal(*call.output.shape))
        arguments = call.keywords()
        del arguments["workspace"]
        if isinstance(call.causal, Tensor):
            arguments |= {"causal": True, "causal_per_request": call.causal}
        return change(arguments)

    return Case(f"{str(dtype).removeprefix('torch.')}-{name}", make, kind, raises)


def _scaled_query(factor: float) -> Callable[[Arguments], Arguments]:
    def change(arguments: Arguments) -> Arguments:
        return arguments | {"query": arguments["query"] * factor}

    return change


def _longer_than_its_keys(arguments: Arguments) -> Arguments:
    """The first request's queries are more than its keys, as in attention to an encoder."""
    seq_lens = arguments["seq_lens"].clone()
    seq_lens[0] = 3
    return arguments | {"seq_lens": seq_lens}


def _values_within_keys(arguments: Arguments) -> Arguments:
    """As in multi-head latent attention, where a value is the first part of its key."""
    keys, value_size = arguments["key_cache"], arguments["value_cache"].shape[3]
    return arguments | {"value_cache": keys[..., :value_size]}


def _without_keys(arguments: Arguments) -> Arguments:
    return arguments | {"seq_lens": torch.zeros_like(arguments["seq_lens"])}


def _block_outside(number: int) -> Callable[[Arguments], Arguments]:
    def change(arguments: Arguments) -> Arguments:
        table = arguments["block_table"].clone()
        table[-1, 0] = number if number < 0 else arguments["key_cache"].shape[0] + number
        return arguments | {"block_table": table}

    return change


def _too_long(arguments: Arguments) -> Arguments:
    seq_lens = arguments["seq_lens"].clone()
    seq_lens[-1] = arguments["block_table"].shape[1] * arguments["key_cache"].shape[1] + 1
    return arguments | {"seq_lens": seq_lens}


def _cases() -> list[Case]:
    plain = [
        _case(name, lens, dtype, padding=padding)
        for dtype in DTYPES
        for name, lens, padding in (
            ("decode", DECODE, 0),
            ("prefill", PREFILL, 0),
            ("mixed", MIXED, 3),
        )
    ]
    geometries = [
        _case("mha", MIXED, heads=(3, 3), block_size=1),
        _case("mqa", MIXED, torch.bfloat16, heads=(8, 1), block_size=7),
        _case("group5-head40", MIXED, heads=(5, 1), sizes=(40, 40), block_size=20),
        _case("head80-value48", MIXED, torch.bfloat16, sizes=(80, 48), block_size=48),
        _case("head192-value128", DECODE, torch.bfloat16, heads=(4, 4), sizes=(192, 128)),
        _case("head1-value3", MIXED, sizes=(1, 3), block_size=3),
        _case("block128", ((1, 300), (9, 140)), torch.bfloat16, block_size=128),
        *(_case(f"cache-{layout}", MIXED, layout=layout) for layout in ("LBNHC", "BHLNC")),
    ]
    latents = [
        _case(
            f"latents{sizes[0]}-{name}",
            lens,
            dtype,
            heads=(heads, 1),
            sizes=sizes,
            block_size=block_size,
            kv_dtype=kv_dtype,
            scales=(2.0, 2.0) if kv_dtype is torch.float8_e4m3fn else (1.0, 1.0),
            change=_values_within_keys,
        )
        for name, lens, dtype, kv_dtype, heads, sizes, block_size in (
            ("decode", DECODE, torch.bfloat16, None, 16, (576, 512), 16),
            ("bfloat16-cache", DECODE, torch.float32, torch.bfloat16, 16, (576, 512), 64),
            ("mixed", MIXED, torch.float16, None, 5, (288, 256), 16),
            ("long", ((1, 700), (3, 300)), torch.float32, None, 4, (576, 512), 32),
            ("odd", MIXED, torch.float32, None, 3, (7, 5), 3),
            ("float8-cache", MIXED, torch.bfloat16, torch.float8_e4m3fn, 6, (80, 64), 16),
        )
    ]
    options = [
        _case("window1", MIXED, sliding_window=1),
        _case("window9", MIXED, torch.bfloat16, sliding_window=9, block_size=4),
        _case("window9-not-causal", MIXED, sliding_window=9, block_size=4, causal=False),
        _case("not-causal", MIXED, causal=False),
        _case("causal-per-request", MIXED, causal=(True, False, True, False, False)),
        _case("soft-cap", MIXED, torch.float16, logits_soft_cap=5.0),
        _case("alibi", MIXED, torch.bfloat16, has_alibi=True),
        _case("sinks", MIXED, torch.bfloat16, has_sinks=True),
        _case(
            "everything",
            MIXED,
            sliding_window=20,
            logits_soft_cap=30.0,
            has_alibi=True,
            has_sinks=True,
            causal=False,
        ),
        _case("float8-cache", MIXED, torch.bfloat16, kv_dtype=torch.float8_e4m3fn, scales=(0.5, 3)),
        _case("float8-e5m2-cache", DECODE, kv_dtype=torch.float8_e5m2, scales=(2, 0.25)),
        _case("int8-cache", MIXED, torch.bfloat16, kv_dtype=torch.int8, scales=(0.5, 3)),
        _case("bfloat16-cache", MIXED, kv_dtype=torch.bfloat16),
    ]
    edges = [
        _case("more-queries-than-keys", ((9, 9), (1, 4)), change=_longer_than_its_keys),
        _case("no-keys", MIXED, kind="empty", change=_without_keys, padding=1),
        _case("no-keys-but-sinks", MIXED, kind="empty", change=_without_keys, has_sinks=True),
        _case("no-tokens", ((0, 5),), kind="empty"),
        _case(
            "huge-logits-capped",
            MIXED,
            kind="extreme",
            change=_scaled_query(1e30),
            logits_soft_cap=30.0,
        ),
        _case("tiny-logits", MIXED, torch.bfloat16, kind="extreme", change=_scaled_query(1e-30)),
    ]
    refused = [
        _case(name, DECODE, change=change, raises=IndexError)
        for name, change in (
            ("block-behind-the-cache", _block_outside(0)),
            ("negative-block", _block_outside(-1)),
            ("longer-than-its-blocks", _too_long),
        )
    ]
    return plain + geometries + latents + options + edges + refused


def allowed(expected: Tensor, dtype: torch.dtype, arguments: Arguments) -> Tensor:
    """The result's rounding, the rounding of softmax weights to the result's dtype, float32 sums.

    The latter two go with the size of a head's output as a whole. Beside a cache of no more bits
    than bfloat16, float32 queries and weights may be two bfloat16 numbers each. An output that is
    off by one part in a hundred is out of it in its larger elements.
    """
    size = expected.abs()
    mean = size.square().mean(-1, keepdim=True).sqrt()
    unit = UNIT[dtype]
    rounding = (0.6 * size + mean) * unit if dtype.itemsize == 2 else 0.0
    sums = 256 if _fits_bfloat16(arguments["key_cache"]) else 64
    return rounding + sums * UNIT[torch.float32] * (size + mean)


def _fits_bfloat16(cache: Tensor) -> bool:
    """Whether a cache's type, which the comparison has widened, has no more bits than bfloat16."""
    numbers = cache[~cache.isnan()]
    return bool((numbers.bfloat16().to(cache.dtype) == numbers).all())


def _triton(
    *, causal: bool = True, causal_per_request: Tensor | None = None, **arguments: Any
) -> None:
    triton_attention.function(
        causal=causal if causal_per_request is None else causal_per_request, **arguments
    )


def _moved_bytes(arguments: Arguments) -> int:
    """The query and output of all requests, and the keys and values that are seen, once."""
    rows = keys = 0
    for seen in _seen(arguments):
        rows += len(seen)
        keys += max((last for _, last in seen), default=0) - min((f for f, _ in seen), default=0)
    row = sum(_bytes(arguments[name][0]) for name in ("query", "output"))
    key = sum(_bytes(arguments[name][0, 0]) for name in ("key_cache", "value_cache"))
    return rows * row + keys * key


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _operations(arguments: Arguments) -> int:
    """Multiplications and additions of both products, for the keys that each query sees."""
    pairs = sum(last - first for seen in _seen(arguments) for first, last in seen)
    heads, head_size = arguments["query"].shape[1:]
    return pairs * heads * 2 * (head_size + arguments["value_cache"].shape[3])


def _seen(arguments: Arguments) -> list[list[tuple[int, int]]]:
    """For each request and query: the first key that it sees, and the one behind the last."""
    starts, lens = arguments["query_start_loc"].tolist(), arguments["seq_lens"].tolist()
    per_request = arguments.get("causal_per_request")
    flags = [arguments["causal"]] * len(lens) if per_request is None else per_request.tolist()
    window = arguments["sliding_window"]
    requests = []
    for request, keys in enumerate(lens):
        reach = keys if window is None else window - 1
        seen = []
        for position in range(keys - starts[request + 1] + starts[request], keys):
            first = max(position - reach, 0)
            last = min(position + (0 if flags[request] else reach), keys - 1)
            seen.append((first, max(last + 1, first)))
        requests.append(seen)
    return requests


def _benchmark(name: str, lens: Sequence[tuple[int, int]]) -> Case:
    return _case(name, lens, torch.bfloat16, heads=(9, 3), sizes=(64, 64))


OPS = (
    Op(
        name=paged_attention_op.NAME,
        family="attention",
        reference=paged_attention_op.paged_attention,
        cases=tuple(_cases()),
        views=("query", "key_cache", "value_cache", "output"),
        allowed=allowed,
        moved_bytes=_moved_bytes,
        operations=_operations,
        peers={"triton": _triton},
        benchmarks=(
            _benchmark("8-decodes-of-1k", [(1, 1024)] * 8),
            _benchmark("prompt-of-512", [(512, 512)]),
        ),
    ),
)
