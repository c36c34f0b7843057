# SPDX-License-Identifier: Apache-2.0
"""Cases of vllm_anvil.ops.norm."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from vllm_anvil.references import norm as reference
from vllm_anvil.testing.op_case import UNIT, AllowedError, Arguments, Case, Inputs, Op, Tolerance

EPSILON = 1e-6
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
    (1, 576),
    (6, 576),
    (3, 2, 2, 33),
    (2, 4101),
)
EMPTY = ((0, 64), (2, 0, 17), (3, 0))

# Names of arguments that have x's shape, and of those that have one value per column.
RMS = (("x",), ("weight",))
FUSED = (("x", "residual"), ("weight",))
LAYER = (("x",), ("weight", "bias"))
Layout = tuple[tuple[str, ...], tuple[str, ...]]


def _values(inputs: Inputs, shape: tuple[int, ...], dtype: torch.dtype, kind: str) -> Tensor:
    """Rows, by kind: normal values; each row of another magnitude; a few that are not finite."""
    values = inputs.normal(*shape)
    if kind == "extreme":
        info = torch.finfo(dtype)
        rows = values.view(-1, shape[-1])
        # As large as float32 can still square and sum.
        largest = min(info.max / 16, 1e17)
        scales = (largest, info.smallest_normal, 0.0, math.sqrt(largest), 1e-3)
        for row, scale in zip(rows, scales, strict=True):
            row.clamp_(-4, 4).mul_(scale)
    if kind == "special":
        values[0, 1], values[1, 2], values[2, 3] = torch.nan, torch.inf, -torch.inf
        values[3, :2] = torch.tensor([torch.inf, -torch.inf])
    return values.to(dtype)


def _make(
    inputs: Inputs,
    *,
    layout: Layout,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    others: torch.dtype | None = None,
    parameters: torch.dtype | None = None,
    bias: torch.dtype | None = None,
    kind: str = "ordinary",
    mean: float = 0.0,
    without: tuple[str, ...] = (),
    **options: float | int,
) -> Arguments:
    rows, columns = layout
    result: Arguments = {}
    for name in rows:
        of = dtype if name == "x" else others or dtype
        narrower = min(dtype, of, key=lambda t: torch.finfo(t).max)
        result[name] = (_values(inputs, shape, narrower, kind).float() + mean).to(of)
    for name in columns:
        of = bias if name == "bias" and bias else parameters or dtype
        values = inputs.normal(shape[-1], scale=0.5) + (1.0 if name == "weight" else 0.0)
        result[name] = None if name in without else values.to(of)
    return result | {"epsilon": EPSILON} | options


def _case(name: str, layout: Layout, kind: str = "ordinary", **options: Any) -> Case:
    make = functools.partial(_make, layout=layout, kind=kind, **options)
    return Case(name, make, kind)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _common(layout: Layout) -> Iterator[Case]:
    """Shapes, dtypes and kinds that all norms share."""
    for dtype in DTYPES:
        name = _short(dtype)
        for shape in SHAPES:
            size = "x".join(map(str, shape))
            yield _case(f"{name}-{size}", layout, shape=shape, dtype=dtype)
        for kind in ("extreme", "special"):
            yield _case(f"{name}-{kind}", layout, kind, shape=(5, 45), dtype=dtype)
        for parameters in DTYPES:
            if parameters != dtype:
                yield _case(
                    f"{name}-{_short(parameters)}-parameters",
                    layout,
                    shape=(3, 83),
                    dtype=dtype,
                    parameters=parameters,
                )
    for shape in EMPTY:
        size = "x".join(map(str, shape))
        yield _case(f"empty-{size}", layout, "empty", shape=shape, dtype=torch.bfloat16)
    for without in {layout[1], layout[1][:1], layout[1][-1:]}:
        name = f"no-{'-'.join(without)}"
        yield _case(name, layout, shape=(3, 50), dtype=torch.bfloat16, without=without)


def _rms_forms(layout: Layout) -> Iterator[Case]:
    """What RMS norms have besides."""
    for dtype in DTYPES:
        name = _short(dtype)
        options: dict[str, Any] = {"shape": (4, 77), "dtype": dtype}
        yield _case(f"{name}-gemma", layout, weight_offset=1.0, **options)
        yield _case(f"{name}-variance-of-40", layout, variance_size=40, **options)
    options = {"shape": (2, 5, 33), "dtype": torch.float32}
    yield _case("variance-of-1", layout, variance_size=1, **options)
    yield _case("variance-of-all", layout, variance_size=33, weight_offset=-0.5, **options)
    yield _case("no-weight-gemma", layout, without=("weight",), weight_offset=1.0, **options)


def _residual_dtypes() -> Iterator[Case]:
    for dtype in DTYPES:
        for others in DTYPES:
            if others != dtype:
                yield _case(
                    f"{_short(dtype)}-{_short(others)}-residual",
                    FUSED,
                    shape=(3, 61),
                    dtype=dtype,
                    others=others,
                )


def _layer_forms() -> Iterator[Case]:
    for dtype in DTYPES:
        # Little is left when the mean is taken off.
        mean = 1000.0 if dtype == torch.float32 else 16.0
        name = f"{_short(dtype)}-far-from-0"
        yield _case(name, LAYER, shape=(3, 90), dtype=dtype, mean=mean)
        for bias in DTYPES:
            if bias != dtype:
                name = f"{_short(dtype)}-weight-{_short(bias)}-bias"
                yield _case(name, LAYER, shape=(2, 20), dtype=dtype, bias=bias)


def _benchmarks(layout: Layout) -> tuple[Case, ...]:
    """A decode step of one request and of 32, and a chunk of a prompt."""
    return tuple(
        _case(f"{_short(dtype)}-{rows}x{columns}", layout, shape=(rows, columns), dtype=dtype)
        for rows, columns in ((1, 576), (32, 576), (512, 4096))
        for dtype in (torch.bfloat16, torch.float32)
    )


def _within(float32_units: float) -> AllowedError:
    """One unit where a float32 result was rounded to half precision, `float32_units` where it was
    not: rounding of the scale, of each product and of a sum add up."""

    def allowed(expected: Tensor, dtype: torch.dtype, arguments: Arguments) -> Tensor:
        units = float32_units if dtype == torch.float32 else 1.0
        bound = Tolerance(units).allowed(expected, dtype, arguments)
        return bound + torch.finfo(dtype).smallest_normal * UNIT[dtype]  # subnormal results

    return allowed


_FOUR = _within(4.0)


def _layer_allowed(expected: Tensor, dtype: torch.dtype, arguments: Arguments) -> Tensor:
    """Besides, float32 leaves an error of the mean relative to the mean, and next to a bias all
    errors are relative to it, since both may cancel."""
    bound = _FOUR(expected, dtype, arguments)
    x, weight, bias = (arguments[name] for name in ("x", "weight", "bias"))
    if x.numel() > 0:
        deviation = (x.var(-1, correction=0, keepdim=True) + arguments["epsilon"]).sqrt()
        size = x.square().mean(-1, keepdim=True).sqrt()
        mean = 4 * UNIT[torch.float32] * size / deviation
        bound = bound + (mean if weight is None else mean * weight.abs())
    if bias is not None:
        bound = bound + bias.abs() * (2 * UNIT[torch.float32])
    return bound


def moved_bytes(arguments: Arguments) -> int:
    """Rows are read and results of their dtypes written; parameters are read."""
    total = 0
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            times = 2 if name in ("x", "residual") else 1
            total += times * value.numel() * value.element_size()
    return total


def operations(arguments: Arguments) -> int:
    """Per element a square and its sum, a scale, and one for each other operand."""
    operands = sum(isinstance(value, Tensor) for value in arguments.values())
    return (2 + operands) * arguments["x"].numel()


def add_then_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The norm and the total by a sum and a norm; the total is rounded in between."""
    total = x + residual
    normed = torch.ops.anvil.rms_norm(total, weight, epsilon, variance_size, weight_offset)
    return normed, total.to(residual.dtype)


def _unfused(*names: str) -> Callable[..., dict[str, Tensor]]:
    return lambda **arguments: dict(zip(names, add_then_norm(**arguments), strict=True))


OPS = (
    Op(
        name="rms_norm",
        family="norm",
        reference=reference.rms_norm,
        cases=(*_common(RMS), *_rms_forms(RMS)),
        batch={"x": 0, "result": 0},
        views=("x",),
        allowed=_FOUR,
        moved_bytes=moved_bytes,
        operations=operations,
        benchmarks=_benchmarks(RMS),
    ),
    Op(
        name="fused_add_rms_norm",
        family="norm",
        reference=reference.fused_add_rms_norm,
        cases=(*_common(FUSED), *_rms_forms(FUSED), *_residual_dtypes()),
        batch={"x": 0, "residual": 0, "result0": 0, "result1": 0},
        views=("x", "residual"),
        allowed={"result0": _FOUR, "result1": _within(1.0)},
        moved_bytes=moved_bytes,
        operations=operations,
        unfused=_unfused("result0", "result1"),
        benchmarks=_benchmarks(FUSED),
    ),
    Op(
        name="fused_add_rms_norm_",
        family="norm",
        reference=reference.fused_add_rms_norm_,
        cases=(*_common(FUSED), *_rms_forms(FUSED), *_residual_dtypes()),
        batch={"x": 0, "residual": 0},
        views=("x", "residual"),
        allowed={"x": _FOUR, "residual": _within(1.0)},
        moved_bytes=moved_bytes,
        operations=operations,
        unfused=_unfused("x", "residual"),
        benchmarks=_benchmarks(FUSED),
    ),
    Op(
        name="layer_norm",
        family="norm",
        reference=reference.layer_norm,
        cases=(*_common(LAYER), *_layer_forms()),
        batch={"x": 0, "result": 0},
        views=("x",),
        allowed=_layer_allowed,
        moved_bytes=moved_bytes,
        operations=operations,
        benchmarks=_benchmarks(LAYER),
    ),
)
