# SPDX-License-Identifier: Apache-2.0
"""Cases of qk_norm_rotary_write_kv_cache, of vllm_anvil.ops.rotary."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from vllm_anvil.references import rotary
from vllm_anvil.testing.op_case import AllowedError, Arguments, Case, Inputs, Op, refused
from vllm_anvil.testing.rounding import FLOAT32, rounding

_MAX_POSITION = 67
_BLOCK_SIZE = 4
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_EPSILON = 1e-6


def _case(
    name: str,
    *,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    weight_dtype: torch.dtype = torch.float32,
    tokens: int = 7,
    slots: int | None = None,
    skipped: int = 2,
    heads: tuple[int, int] = (4, 2),
    head_size: int = 64,
    value_size: int | None = None,
    rotary_dim: int | None = None,
    is_neox: bool = True,
    norm: str = "weighed",
    flat: bool = True,
    position_dtype: torch.dtype = torch.int64,
    section: Sequence[int] = (),
    interleaved: bool = False,
    block_size: int = _BLOCK_SIZE,
    kind: str = "ordinary",
) -> Case:
    """`heads`: of the query and of the key. `slots`: of the first tokens, the others have none.
    `norm`: "weighed", "gemma" (an offset of 1), "plain" (no weights) or "none"."""

    def make(inputs: Inputs) -> Arguments:
        def states(number: int, size: int, scale: float = 1.0) -> Tensor:
            values = inputs.normal(tokens, number, size, scale=scale)
            if kind == "special" and tokens:
                values[0, 0, 0], values[1, 0, 1], values[2, -1, 2] = (
                    torch.nan,
                    torch.inf,
                    -torch.inf,
                )
            if kind == "extreme" and tokens:
                # As large as float32 can still square and sum, vanishing, and zero.
                scales = torch.tensor([min(torch.finfo(dtype).max / 64, 1e17), 1e-30, 0.0, 1e-3])
                values = values * scales[torch.arange(tokens) % len(scales)][:, None, None]
            values = values.to(dtype)
            return values.flatten(1) if flat else values

        def weight() -> Tensor:
            return (inputs.normal(head_size, scale=0.5) + 1.0).to(weight_dtype)

        blocks = -(-2 * max(tokens, 1) // block_size)
        sizes = (head_size, value_size or head_size)
        caches = [
            inputs.normal(blocks, block_size, heads[1], size, dtype=cache_dtype or dtype)
            for size in sizes
        ]
        taken = tokens if slots is None else slots
        mapping = inputs.distinct(taken, blocks * block_size)
        if taken > skipped:
            mapping[inputs.distinct(skipped, taken)] = -1
        shape = (3, tokens) if section else (tokens,)
        table = rotary.cos_sin_cache(
            rotary.frequencies(rotary_dim or head_size, 10000.0), _MAX_POSITION
        )
        weighed = norm in ("weighed", "gemma")
        return {
            "positions": inputs.integers(*shape, high=_MAX_POSITION).to(position_dtype),
            "query": states(heads[0], head_size),
            "key": states(heads[1], head_size),
            "value": states(heads[1], sizes[1]),
            "key_cache": caches[0],
            "value_cache": caches[1],
            "slot_mapping": mapping,
            "cos_sin_cache": table.float(),
            "is_neox": is_neox,
            "query_weight": weight() if weighed else None,
            "key_weight": weight() if weighed else None,
            "epsilon": None if norm == "none" else _EPSILON,
            "weight_offset": 1.0 if norm == "gemma" else 0.0,
            "mrope_section": list(section),
            "mrope_interleaved": interleaved,
        }

    return Case(name, make, kind)


def _style_cases(is_neox: bool) -> Iterator[Case]:
    style = "neox" if is_neox else "gptj"
    for dtype in _DTYPES:
        case = functools.partial(_case, is_neox=is_neox, dtype=dtype)
        name = f"{style}-{str(dtype).removeprefix('torch.')}"
        yield case(f"{name}-normed")
        yield case(f"{name}-not-normed", norm="none", flat=False)
        yield case(f"{name}-partial", head_size=80, rotary_dim=34, value_size=24, flat=False)
        yield case(f"{name}-no-tokens", tokens=0, kind="empty")
        yield case(f"{name}-special", kind="special")
        yield case(f"{name}-extreme", kind="extreme")
    yield _case(f"{style}-int32-positions", is_neox=is_neox, position_dtype=torch.int32)


def _other_cases() -> Iterator[Case]:
    for cache_dtype in (torch.bfloat16, torch.float16):
        short = str(cache_dtype).removeprefix("torch.")
        for norm in ("none", "weighed"):
            yield _case(f"float32-into-{short}-{norm}", cache_dtype=cache_dtype, norm=norm)
    half = torch.bfloat16
    yield _case("bfloat16-weights", dtype=half, weight_dtype=half, head_size=128)
    yield _case("gemma", norm="gemma", head_size=33, rotary_dim=32)
    yield _case("norm-without-weights", norm="plain", dtype=half)
    yield _case("fewer-slots-than-tokens", tokens=9, slots=5, dtype=half)
    yield _case("no-slots", slots=0, skipped=0, kind="empty")
    yield _case("one-token", tokens=1, skipped=0, heads=(1, 1), head_size=2, norm="none")
    yield _case("wide-head", head_size=600, rotary_dim=522, tokens=4)
    yield _case("batch", dtype=half, tokens=130, heads=(9, 3), block_size=16)
    for interleaved in (False, True):
        order = "interleaved" if interleaved else "sections"
        yield _case(f"mrope-{order}", section=(11, 3, 2), head_size=36, rotary_dim=32,
                    interleaved=interleaved)  # fmt: skip


def _refused() -> Iterator[Case]:
    plain = _case("plain")  # 7 tokens, 16 slots
    for name, index, value in (
        ("positions", 2, _MAX_POSITION),
        ("positions", 6, -1),
        ("slot_mapping", 3, 16),
        ("slot_mapping", 6, 2**40),
    ):

        def change(
            arguments: Arguments, name: str = name, index: int = index, value: int = value
        ) -> Arguments:
            arguments[name][index] = value
            return arguments

        yield refused(plain, f"{name}-{value}", change, IndexError)


def _benchmarks() -> tuple[Case, ...]:
    """Qwen3's heads in bfloat16, and SmolLM2's in float32 over a bfloat16 cache, as the engine's
    layers have them here: in a step of one request and of 32, and in a chunk of a prompt."""
    qwen3 = functools.partial(_case, dtype=torch.bfloat16, heads=(32, 8), head_size=128)
    smollm2 = functools.partial(
        _case, cache_dtype=torch.bfloat16, heads=(9, 3), head_size=64, norm="none"
    )
    return tuple(
        make(f"{name}-tokens{tokens}", tokens=tokens, skipped=0, block_size=16)
        for name, make in (("qwen3", qwen3), ("smollm2", smollm2))
        for tokens in (1, 32, 512)
    )


def _allowed(turns: bool, written_to: str | None = None) -> AllowedError:
    """Rounding of the result, of what was normed before it was turned, and float32's own error,
    the latter two relative to the length of a pair, which the rotation keeps.

    In a cache what no slot names is exact, and what one names may be rounded once more."""

    def allowed(expected: Tensor, dtype: torch.dtype, arguments: Arguments) -> Tensor:
        head_size = expected.shape[-1] if written_to else arguments["key_cache"].shape[3]
        heads = expected.double().unflatten(-1, (-1, head_size))
        length = heads.abs()
        half = arguments["cos_sin_cache"].shape[1] // 2 if turns else 0
        turned = heads[..., : 2 * half]
        if not arguments["is_neox"]:
            pairs = torch.hypot(turned[..., ::2], turned[..., 1::2]).repeat_interleave(2, -1)
        else:
            first, second = turned.chunk(2, -1)
            pairs = torch.hypot(first, second).repeat((1,) * (heads.dim() - 1) + (2,))
        length[..., : 2 * half] = pairs
        bound = torch.zeros_like(heads)
        if turns and arguments["epsilon"] is not None:
            bound += rounding(heads, dtype) + 1.5 * rounding(length, dtype) + length * (8 * FLOAT32)
        elif turns:
            tiny = torch.finfo(torch.float32).smallest_normal
            bound[..., : 2 * half] = rounding(turned, dtype) + pairs.clamp_min(tiny) * (4 * FLOAT32)
        bound = bound.view(expected.shape)
        if written_to is not None:
            bound = bound + rounding(expected, dtype)
            slots = arguments["slot_mapping"]
            slots = slots[slots >= 0]
            named = torch.zeros(expected.shape[0] * expected.shape[1], dtype=torch.bool)
            named[slots] = True
            bound[~named.view(expected.shape[:2])] = 0.0
        return bound

    return allowed


def _moved_bytes(arguments: Arguments) -> int:
    """Queries, keys and values are read once, and written: queries where they lie, the others to
    the cache."""
    slots = arguments["slot_mapping"]
    rows = int((slots >= 0).sum())
    caches = sum(rows * arguments[name][0, :1].nbytes for name in ("key_cache", "value_cache"))
    read = sum(arguments[name].nbytes for name in ("positions", "query", "key", "value"))
    tokens = arguments["positions"].shape[-1]
    table = tokens * arguments["cos_sin_cache"][:1].nbytes
    return read + arguments["query"].nbytes + caches + slots.nbytes + table


def _operations(arguments: Arguments) -> int:
    """Per element that is normed a square and its sum, a scale and a weight; per element that
    turns two products and a sum."""
    head_size = arguments["key_cache"].shape[3]
    elements = arguments["query"].numel() + arguments["key"].numel()
    turned = elements * arguments["cos_sin_cache"].shape[1] // head_size
    return (0 if arguments["epsilon"] is None else 4 * elements) + 3 * turned


def unfused(
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
    weight_offset: float,
    mrope_section: Sequence[int],
    mrope_interleaved: bool,
) -> dict[str, Tensor]:
    """The separate ops that an engine's layers would call."""
    ops: Any = torch.ops.anvil
    head_size, slots = key_cache.shape[3], len(slot_mapping)
    if epsilon is not None:
        query, key = (
            ops.rms_norm(
                rotary.heads_of(states, head_size), weight, epsilon, None, weight_offset
            ).view(states.shape)
            for states, weight in ((query, query_weight), (key, key_weight))
        )
    ops.rotary_embedding(
        positions, query, key, head_size, cos_sin_cache, is_neox, mrope_section, mrope_interleaved
    )
    ops.write_kv_cache(
        rotary.heads_of(key[:slots], head_size).to(key_cache.dtype),
        rotary.heads_of(value[:slots], value_cache.shape[3]).to(value_cache.dtype),
        key_cache,
        value_cache,
        slot_mapping,
    )
    return {"query": query, "key": key, "key_cache": key_cache, "value_cache": value_cache}


OPS = (
    Op(
        name="qk_norm_rotary_write_kv_cache",
        family="rotary",
        reference=rotary.qk_norm_rotary_write_kv_cache,
        cases=(*_style_cases(True), *_style_cases(False), *_other_cases(), *_refused()),
        batch={"positions": -1, "query": 0, "key": 0, "value": 0, "slot_mapping": 0},
        views=("query", "key", "value", "key_cache", "value_cache", "cos_sin_cache"),
        allowed={
            "query": _allowed(True),
            "key": _allowed(True),
            "key_cache": _allowed(True, "key"),
            "value_cache": _allowed(False, "value"),
        },
        moved_bytes=_moved_bytes,
        operations=_operations,
        unfused=unfused,
        benchmarks=_benchmarks(),
    ),
)
