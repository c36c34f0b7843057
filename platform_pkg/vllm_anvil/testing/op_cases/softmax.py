# SPDX-License-Identifier: Apache-2.0
"""Cases of vllm_anvil.ops.softmax."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from vllm_anvil.references import softmax as reference
from vllm_anvil.testing.op_case import UNIT, Arguments, Case, Inputs, Op, Tolerance

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = (
    (1, 1),
    (2, 3),
    (5, 15),
    (3, 16),
    (7, 17),
    (4, 64),
    (3, 127),
    (2, 3, 130),
    (3, 2, 2, 33),
    (2, 4101),
    (1, 32003),
)
EMPTY = ((0, 64), (2, 0, 17), (3, 0))
ROWS = 8  # of the extreme and the special cases


def _make(
    inputs: Inputs, *, shape: tuple[int, ...], dtype: torch.dtype, kind: str = "ordinary"
) -> Arguments:
    x = inputs.normal(*shape, scale=3.0)
    if kind == "extreme":
        largest = torch.finfo(dtype).max
        x[0] *= 40  # most results are subnormal or 0
        x[1] = torch.linspace(-110, 0, shape[-1])
        x[2, ::2], x[2, 1::2] = largest, -largest
        x[3] = x[3].sign() * largest
        x[4] = largest  # all equal
        x[5] = 0.0
        x[6] *= torch.finfo(dtype).smallest_normal
        x[7, 5] = 40.0  # all but certain
    if kind == "special":
        x[0, 3] = torch.nan
        x[1] = -torch.inf
        x[2, 4] = torch.inf
        x[3, [1, 9]] = torch.inf
        x[4, ::3] = -torch.inf
        x[5], x[5, 7] = -torch.inf, 2.0  # one value alone, as a grammar may leave it
        x[6, 1], x[6, 2] = torch.inf, -torch.inf
        x[7, 1:] = torch.nan
    return {"x": x.to(dtype)}


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        short = str(dtype).removeprefix("torch.")
        for shape in SHAPES:
            name = f"{short}-{'x'.join(map(str, shape))}"
            yield Case(name, functools.partial(_make, shape=shape, dtype=dtype))
        for kind in ("extreme", "special"):
            make = functools.partial(_make, shape=(ROWS, 45), dtype=dtype, kind=kind)
            yield Case(f"{short}-{kind}", make, kind)
    for shape in EMPTY:
        make = functools.partial(_make, shape=shape, dtype=torch.bfloat16)
        yield Case(f"empty-{'x'.join(map(str, shape))}", make, "empty")


def _benchmarks() -> tuple[Case, ...]:
    """Logits of SmolLM2's vocabulary, for one request and for 32."""
    return tuple(
        Case(
            f"float32-{rows}x49152", functools.partial(_make, shape=(rows, 49152), dtype=DTYPES[0])
        )
        for rows in (1, 32)
    )


def _softmax_allowed(expected: Tensor, dtype: torch.dtype, arguments: Arguments) -> Tensor:
    """Rounding of the exponential and the quotient, of a float32 sum, which grows with its length,
    and that of `x - greatest`, by which the exponential is off as many units as it is large.
    Results are float32 for every dtype."""
    x = arguments["x"]
    if x.numel() == 0:
        return torch.zeros_like(x)
    below = (x.amax(-1, keepdim=True) - x).nan_to_num(0.0, 200.0).clamp(max=200.0)
    units = 4 + below + math.sqrt(x.shape[-1]) / 16
    subnormal = 2 * torch.finfo(dtype).smallest_normal * UNIT[dtype]
    return expected.abs().double() * units * UNIT[dtype] + subnormal


def moved_bytes(arguments: Arguments) -> int:
    x = arguments["x"]
    return x.numel() * (x.element_size() + 4)


def _operations(arguments: Arguments) -> int:
    """The greatest, a difference, an exponential of about ten operations, a sum, a product."""
    return 14 * arguments["x"].numel()


OPS = (
    Op(
        name="softmax",
        family="softmax",
        reference=reference.softmax,
        cases=tuple(_cases()),
        batch={"x": 0, "result": 0},
        views=("x",),
        allowed=_softmax_allowed,
        moved_bytes=moved_bytes,
        operations=_operations,
        benchmarks=_benchmarks(),
    ),
    Op(
        name="log_softmax",
        family="softmax",
        reference=reference.log_softmax,
        cases=tuple(_cases()),
        batch={"x": 0, "result": 0},
        views=("x",),
        # The logarithm of the sum has an error of its own, whatever the result's size is.
        allowed=Tolerance(units=2.0, absolute=4 * UNIT[torch.float32]),
        moved_bytes=moved_bytes,
        operations=_operations,
        benchmarks=_benchmarks(),
    ),
)
