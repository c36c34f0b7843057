# SPDX-License-Identifier: Apache-2.0
"""Cases of vllm_anvil.ops.rotary."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from vllm_anvil.references import rotary
from vllm_anvil.testing.op_case import Arguments, Case, Inputs, Op, refused
from vllm_anvil.testing.rounding import FLOAT32, rounding

_MAX_POSITION = 67
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _plain(rotary_dim: int) -> Tensor:
    return rotary.cos_sin_cache(rotary.frequencies(rotary_dim, 10000.0), _MAX_POSITION)


def _yarn(rotary_dim: int) -> Tensor:
    stretched = rotary.yarn_frequencies(rotary_dim, 10000.0, factor=4.0, original_max_position=16)
    return rotary.cos_sin_cache(stretched, _MAX_POSITION, rotary.yarn_magnitude(4.0))


def _llama3(rotary_dim: int) -> Tensor:
    stretched = rotary.llama3_frequencies(
        rotary_dim,
        500000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position=16,
    )
    return rotary.cos_sin_cache(stretched, _MAX_POSITION)


_Table = Callable[[int], Tensor]
_Positions = Callable[[Inputs, int], Tensor]


def _any_positions(inputs: Inputs, tokens: int) -> Tensor:
    return inputs.integers(tokens, high=_MAX_POSITION)


def _ends_and_repeated(inputs: Inputs, tokens: int) -> Tensor:
    """Each position twice, out of order, the first and the last of the table among them."""
    chosen = inputs.integers(tokens, high=_MAX_POSITION)
    chosen[: tokens // 2] = chosen[-(tokens // 2) :].flip(0)
    chosen[0], chosen[-1] = _MAX_POSITION - 1, 0
    return chosen


def _of_three_axes(inputs: Inputs, tokens: int) -> Tensor:
    return inputs.integers(3, tokens, high=_MAX_POSITION)


def _ordinary(inputs: Inputs, *shape: int, dtype: torch.dtype) -> Tensor:
    return inputs.normal(*shape, dtype=dtype)


def _extreme(inputs: Inputs, *shape: int, dtype: torch.dtype) -> Tensor:
    """Values from a quarter of the dtype's largest to its smallest, and zeros."""
    limits = torch.finfo(dtype)
    sizes = torch.tensor(
        [limits.max / 4, limits.smallest_normal, limits.smallest_normal * limits.eps, 1.0, 0.0],
        dtype=torch.float64,
    )
    signs = inputs.integers(*shape, high=2) * 2 - 1
    return (sizes[inputs.integers(*shape, high=len(sizes))] * signs).to(dtype)


def _special(inputs: Inputs, *shape: int, dtype: torch.dtype) -> Tensor:
    values = inputs.normal(*shape, dtype=dtype)
    flat = values.view(-1)
    chosen = inputs.distinct(6, flat.numel())
    flat[chosen] = torch.tensor([float("nan"), float("inf"), float("-inf")] * 2, dtype=dtype)
    return values


_VALUES = {"ordinary": _ordinary, "empty": _ordinary, "extreme": _extreme, "special": _special}


def _case(
    name: str,
    *,
    dtype: torch.dtype = torch.float32,
    tokens: int = 5,
    heads: tuple[int, int] = (3, 2),
    head_size: int = 64,
    rotary_dim: int | None = None,
    is_neox: bool = True,
    table: _Table = _plain,
    table_dtype: torch.dtype = torch.float32,
    flat: bool = True,
    with_key: bool = True,
    positions: _Positions = _any_positions,
    position_dtype: torch.dtype = torch.int64,
    section: Sequence[int] = (),
    interleaved: bool = False,
    kind: str = "ordinary",
) -> Case:
    """`heads`: of the query and of the key."""

    def make(inputs: Inputs) -> Arguments:
        def states(number: int) -> Tensor:
            values = _VALUES[kind](inputs, tokens, number, head_size, dtype=dtype)
            return values.flatten(1) if flat else values

        return {
            "positions": positions(inputs, tokens).to(position_dtype),
            "query": states(heads[0]),
            "key": states(heads[1]) if with_key else None,
            "head_size": head_size,
            "cos_sin_cache": table(rotary_dim or head_size).to(table_dtype),
            "is_neox": is_neox,
            "mrope_section": list(section),
            "mrope_interleaved": interleaved,
        }

    return Case(name, make, kind)


def _style_cases(is_neox: bool) -> list[Case]:
    case = functools.partial(_case, is_neox=is_neox)
    style = "neox" if is_neox else "gptj"
    cases = []
    for dtype in _DTYPES:
        of = functools.partial(case, dtype=dtype)
        name = f"{style}-{str(dtype).removeprefix('torch.')}"
        cases += [
            of(f"{name}-head64"),
            of(f"{name}-head80-3d", head_size=80, flat=False, tokens=7),
            of(f"{name}-head130-partial34", head_size=130, rotary_dim=34, flat=False),
            of(f"{name}-head6-partial2", head_size=6, rotary_dim=2),
            of(f"{name}-one-token", tokens=1, heads=(4, 1), head_size=128),
            of(f"{name}-no-key", with_key=False, head_size=96),
            of(f"{name}-no-tokens", tokens=0, kind="empty"),
            of(f"{name}-table-of-bfloat16", table_dtype=torch.bfloat16),
            of(f"{name}-table-of-float16", table_dtype=torch.float16, head_size=62),
            of(f"{name}-extreme", kind="extreme", tokens=9),
            of(f"{name}-special", kind="special", tokens=9),
        ]
    cases += [
        case(f"{style}-ends-and-repeated-positions", tokens=12, positions=_ends_and_repeated),
        case(f"{style}-int32-positions", position_dtype=torch.int32),
        case(f"{style}-yarn", table=_yarn, head_size=128),
        case(f"{style}-yarn-partial", table=_yarn, head_size=80, rotary_dim=32),
        case(f"{style}-llama3", table=_llama3, head_size=128),
        case(f"{style}-llama3-bfloat16", table=_llama3, dtype=torch.bfloat16),
        case(f"{style}-wide-head", head_size=600, rotary_dim=522, heads=(2, 1)),
        case(f"{style}-batch", dtype=torch.bfloat16, tokens=130, heads=(9, 3)),
    ]
    return cases


def _multimodal_cases() -> list[Case]:
    cases = []
    sections = {
        "qwen2-vl": (16, 24, 24),
        "qwen3-vl": (24, 20, 20),
        "uneven": (11, 3, 2),
        "time-only": (8, 0, 0),
        "no-time": (0, 5, 4),
    }
    for name, section in sections.items():
        for interleaved in (False, True):
            # Interleaved pairs that height and width do not take are the time's.
            if interleaved and name == "no-time":
                continue
            for is_neox in (True, False):
                order = "interleaved" if interleaved else "plain"
                cases.append(
                    _case(
                        f"mrope-{name}-{order}-{'neox' if is_neox else 'gptj'}",
                        head_size=2 * sum(section) + 4,
                        rotary_dim=2 * sum(section),
                        positions=_of_three_axes,
                        section=section,
                        interleaved=interleaved,
                        is_neox=is_neox,
                        dtype=torch.bfloat16 if name == "qwen3-vl" else torch.float32,
                    )
                )
    return cases


def _refused() -> Iterator[Case]:
    plain = _case("plain")
    for position in (_MAX_POSITION, -1, 2**40):

        def change(arguments: Arguments, position: int = position) -> Arguments:
            arguments["positions"][2] = position
            return arguments

        yield refused(plain, f"position{position}", change, IndexError)


def _benchmarks() -> tuple[Case, ...]:
    """Llama-3's heads, in a step of one request and of 32, and in a chunk of a prompt."""
    return tuple(
        _case(f"bfloat16-tokens{n}", dtype=torch.bfloat16, tokens=n, heads=(32, 8), head_size=128)
        for n in (1, 32, 512)
    )


def _allowed(expected: Tensor, dtype: torch.dtype, arguments: Arguments) -> Tensor:
    """One rounding, and float32's own error relative to the length of a pair, which the rotation
    keeps: the products that are added are no longer than it. Elements that do not turn are exact.
    """
    head_size, half = arguments["head_size"], arguments["cos_sin_cache"].shape[1] // 2
    heads = expected.unflatten(-1, (-1, head_size)) if expected.dim() == 2 else expected
    allowed = torch.zeros(heads.shape, dtype=torch.float64)
    turned = heads[..., : 2 * half].double()
    if arguments["is_neox"]:
        length = torch.hypot(*turned.chunk(2, -1)).repeat(1, 1, 2)
    else:
        length = torch.hypot(turned[..., ::2], turned[..., 1::2]).repeat_interleave(2, -1)
    arithmetic = length.clamp_min(torch.finfo(torch.float32).smallest_normal) * (4 * FLOAT32)
    allowed[..., : 2 * half] = rounding(turned, dtype) + arithmetic
    return allowed.view(expected.shape)


def _turned_elements(arguments: Arguments) -> int:
    share = arguments["cos_sin_cache"].shape[1] / arguments["head_size"]
    states = (arguments["query"], arguments["key"])
    return sum(round(s.numel() * share) for s in states if s is not None)


def _moved_bytes(arguments: dict[str, Any]) -> int:
    positions, table = arguments["positions"], arguments["cos_sin_cache"]
    rows = positions.numel() * table.shape[1] // (3 if positions.dim() == 2 else 1)
    elements = _turned_elements(arguments) * arguments["query"].element_size()
    return positions.nbytes + rows * table.element_size() + 2 * elements


OPS = (
    Op(
        name="rotary_embedding",
        family="rotary",
        reference=rotary.rotary_embedding,
        cases=(*_style_cases(True), *_style_cases(False), *_multimodal_cases(), *_refused()),
        batch={"positions": -1, "query": 0, "key": 0},
        views=("query", "key", "cos_sin_cache"),
        allowed=_allowed,
        moved_bytes=_moved_bytes,
        # Per pair of elements four products, a sum and a difference.
        operations=lambda arguments: 3 * _turned_elements(arguments),
        benchmarks=_benchmarks(),
    ),
)
