# SPDX-License-Identifier: Apache-2.0
"""Cases of vllm_anvil.ops.activation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from vllm_anvil.references import activation as reference
from vllm_anvil.testing.op_case import UNIT, Arguments, Case, Inputs, Op, Tolerance

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = (
    (1, 2),
    (2, 6),
    (5, 30),
    (3, 32),
    (7, 34),
    (4, 128),
    (3, 254),
    (2, 3, 260),
    (1, 3072),
    (5, 3072),
    (3, 2, 2, 66),
    (2, 8202),
)
EMPTY = ((0, 64), (2, 0, 34), (3, 0))
SPECIAL = (torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0, -1.0)


def _make(
    inputs: Inputs,
    *,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    kind: str = "ordinary",
    **options: str,
) -> Arguments:
    if kind == "extreme":
        return {"x": _extreme(inputs, dtype)} | options
    if kind == "special":
        # Each value as a gate with each as a factor.
        gates = torch.tensor(SPECIAL).repeat_interleave(len(SPECIAL))
        factors = torch.tensor(SPECIAL).repeat(len(SPECIAL))
        return {"x": torch.cat((gates, factors)).to(dtype).expand(2, -1).clone()} | options
    return {"x": inputs.normal(*shape, dtype=dtype, scale=2.0)} | options


def _extreme(inputs: Inputs, dtype: torch.dtype) -> Tensor:
    """Gates of every magnitude and around where results vanish, with ordinary, large and tiny
    factors."""
    info = torch.finfo(dtype)
    largest = torch.tensor(info.max, dtype=torch.float64).log2()
    least = torch.tensor(info.smallest_normal, dtype=torch.float64).log2() - 3
    powers = torch.linspace(float(least), float(largest), 151, dtype=torch.float64).exp2()
    tails = torch.linspace(-110, -3, 108, dtype=torch.float64)
    gates = torch.cat((powers, -powers, tails, torch.zeros(1, dtype=torch.float64)))
    factors = inputs.normal(3, gates.numel()).double() * torch.tensor([[1.0], [1e4], [1e-4]])
    return torch.cat((gates.expand(3, -1), factors), dim=1).to(dtype)


def _cases(name: str = "", **options: str) -> Iterator[Case]:
    prefix = f"{name}-" if name else ""

    def case(name: str, kind: str = "ordinary", **values: Any) -> Case:
        return Case(prefix + name, functools.partial(_make, kind=kind, **values), kind)

    for dtype in DTYPES:
        short = str(dtype).removeprefix("torch.")
        for shape in SHAPES:
            size = "x".join(map(str, shape))
            yield case(f"{short}-{size}", shape=shape, dtype=dtype, **options)
        for kind in ("extreme", "special"):
            yield case(f"{short}-{kind}", kind, shape=(), dtype=dtype, **options)
    for shape in EMPTY:
        size = "x".join(map(str, shape))
        yield case(f"empty-{size}", "empty", shape=shape, dtype=torch.bfloat16, **options)


def _few(name: str, **options: str) -> Iterator[Case]:
    """A third of the cases, for another form of an op that has all of them already."""
    wanted = ("x34", "x260", "x8202", "extreme", "special")
    return (case for case in _cases(name, **options) if case.name.endswith(wanted))


def _benchmarks(**options: Any) -> tuple[Case, ...]:
    """The gate of SmolLM2's layers for one request and 32, and of a larger model's for a prompt."""
    return tuple(
        Case(
            f"{str(dtype).removeprefix('torch.')}-{rows}x{columns}",
            functools.partial(_make, shape=(rows, columns), dtype=dtype, **options),
        )
        for rows, columns in ((1, 3072), (32, 3072), (512, 16384))
        for dtype in (torch.bfloat16, torch.float32)
    )


def _silu_allowed(expected: Tensor, dtype: torch.dtype, arguments: Arguments) -> Tensor:
    """Rounding of the exponential, the quotient and two products in float32, then one to half
    precision. For a gate below -87 the exponential leaves the normal numbers, in either direction,
    and what it loses is multiplied."""
    gate, up = arguments["x"].chunk(2, dim=-1)
    units = 4.0 if dtype == torch.float32 else 1.0
    lost = (gate.clamp(-105, 0) * up).abs().nan_to_num() * 2.0**-127
    return Tolerance(units).allowed(expected, dtype, arguments) + lost + _step(dtype)


def _gelu_allowed(expected: Tensor, dtype: torch.dtype, arguments: Arguments) -> Tensor:
    """As above; and for a gate below 0 both formulas are one plus what nears minus one, of which
    float32 leaves an error relative to the product of the two halves."""
    gate, up = arguments["x"].chunk(2, dim=-1)
    units = 8.0 if dtype == torch.float32 else 1.0
    cancelled = (gate.clamp(-15, 0) * up).abs().nan_to_num() * (2 * UNIT[torch.float32])
    return Tolerance(units).allowed(expected, dtype, arguments) + cancelled + _step(dtype)


def _step(dtype: torch.dtype) -> float:
    """The distance between subnormal results."""
    return torch.finfo(dtype).smallest_normal * UNIT[dtype]


def moved_bytes(arguments: Arguments) -> int:
    """Two halves are read, one is written."""
    x = arguments["x"]
    return x.numel() * x.element_size() * 3 // 2


def _operations(per_result: int, arguments: Arguments) -> int:
    return per_result * (arguments["x"].numel() // 2)


def _gate_then_mul(gate: Callable[..., Tensor], x: Tensor, **options: str) -> dict[str, Tensor]:
    """The activation and the product by torch's own ops; what is between them is rounded."""
    first, second = x.chunk(2, dim=-1)
    return {"result": gate(first, **options) * second}


OPS = (
    Op(
        name="silu_and_mul",
        family="activation",
        reference=reference.silu_and_mul,
        cases=tuple(_cases()),
        batch={"x": 0, "result": 0},
        views=("x",),
        allowed=_silu_allowed,
        moved_bytes=moved_bytes,
        # an exponential of about ten operations, a sum, a quotient, two products
        operations=functools.partial(_operations, 14),
        unfused=functools.partial(_gate_then_mul, torch.nn.functional.silu),
        benchmarks=_benchmarks(),
    ),
    Op(
        name="gelu_and_mul",
        family="activation",
        reference=reference.gelu_and_mul,
        cases=(*_cases(approximate="none"), *_few("tanh", approximate="tanh")),
        batch={"x": 0, "result": 0},
        views=("x",),
        allowed=_gelu_allowed,
        moved_bytes=moved_bytes,
        # besides, an argument of three operations
        operations=functools.partial(_operations, 17),
        unfused=functools.partial(_gate_then_mul, torch.nn.functional.gelu),
        benchmarks=_benchmarks(approximate="tanh"),
    ),
)
