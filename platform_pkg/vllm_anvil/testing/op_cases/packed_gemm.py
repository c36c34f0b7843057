# SPDX-License-Identifier: Apache-2.0
"""Cases of the packed ops of vllm_anvil.ops.gemm."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from vllm_anvil.references import gemm
from vllm_anvil.testing.op_case import Arguments, Case, Inputs, Op, Tolerance
from vllm_anvil.testing.rounding import FLOAT32

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_SHAPES = ((1, 1), (16, 2), (35, 7), (160, 65))


def _short(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _case(
    input: torch.dtype,
    weight: torch.dtype,
    rows: tuple[int, ...],
    columns: int,
    depth: int,
    *,
    to: torch.dtype | None = None,
    bias: torch.dtype | None = None,
    kind: str = "ordinary",
    scales: tuple[float, float] = (1.0, 1.0),
    spoil: bool = False,
    round_input: bool = False,
    keep: bool = False,
    in_use: int | None = None,
    name: str = "",
) -> Case:
    """`scales`: of the input and of the weight; `spoil`: with NaN and infinities in both; `keep`:
    the remainders of an input that is rounded."""

    def make(inputs: Inputs) -> Arguments:
        x = inputs.normal(*rows, depth, scale=scales[0]).to(input)
        w = inputs.normal(columns, depth, scale=scales[1]).to(weight)
        if spoil:
            flat = x.view(-1, depth)
            flat[0, 0], flat[1, depth - 1], flat[2, depth // 2] = torch.inf, torch.nan, -torch.inf
            w[0, 1], w[1, depth - 1] = torch.inf, torch.nan
        offsets = None if bias is None else inputs.normal(columns).to(bias)
        return {
            "input": x,
            "packed": gemm.pack_linear(w),
            "columns": columns,
            "bias": offsets,
            "dtype": to,
            "input_dtype": weight if round_input or keep else None,
            "rows_in_use": None if in_use is None else torch.tensor([in_use], dtype=torch.int32),
            "keep_remainders": keep,
        }

    shape = "x".join(map(str, rows))
    return Case(
        f"{_short(input)}-{_short(weight)}-to-{_short(to)}-rows{shape}-{columns}x{depth}"
        f"{'' if bias is None else '-bias-' + _short(bias)}{name}",
        make,
        kind,
    )


def _cases() -> list[Case]:
    cases = []
    for input, weight in itertools.product(_DTYPES, _DTYPES):
        cases += [
            _case(input, weight, (5,), 9, 16, bias=weight),
            _case(input, weight, (1,), 40, 576, to=torch.float32),
            _case(input, weight, (2, 3), 7, 33, bias=torch.float32, to=torch.bfloat16),
        ]
    for of in _DTYPES:
        cases += [
            _case(of, of, (rows,), columns, depth, to=torch.float32)
            for rows in (1, 2, 3, 4, 7, 8, 9, 67)
            for columns, depth in ((1, 1), (3, 15), (33, 31), (150, 530))
        ] + [
            _case(of, of, (250,), 70, 40),
            _case(torch.float32, of, (21,), 70, 41, round_input=True, name="-rounded"),
            _case(of, of, (21,), 70, 41, in_use=21, name="-all-in-use"),
            _case(of, of, (0,), 9, 16, kind="empty"),
            _case(of, of, (4,), 0, 16, kind="empty"),
            _case(of, of, (4,), 9, 0, kind="empty", bias=of),
            _case(of, of, (6,), 10, 41, spoil=True, kind="special", name="-nan-and-infinity"),
            _case(of, of, (6,), 10, 40, scales=(1e-3, 1e-4), kind="extreme", name="-small"),
            _case(of, of, (6,), 10, 40, scales=(0.0, 1.0), kind="extreme", name="-zeros"),
        ]
    half = torch.bfloat16
    for input in _DTYPES:
        cases += [
            _case(input, half, (rows,), 70, depth, keep=True, name="-mostly-rounded")
            for rows in (1, 3, 8, 21)
            for depth in (1, 8, 41, 530)
        ]
    cases += [
        _case(torch.float32, half, (6,), 10, 41, keep=True, kind=kind, name=f"-mostly{name}", **how)
        for kind, name, how in (
            ("special", "-nan-and-infinity", {"spoil": True}),
            ("extreme", "-small", {"scales": (1e-3, 1e-4)}),
            ("extreme", "-zeros", {"scales": (0.0, 1.0)}),
            ("extreme", "-large", {"scales": (1e30, 1e3)}),
        )
    ]
    for input in (torch.float32, torch.bfloat16):
        cases += [
            _case(input, torch.bfloat16, (6,), 10, 40, scales=scales, kind="extreme", name=name)
            for scales, name in (((1e30, 1e3), "-large"), ((1e-38, 1e-4), "-tiny"))
        ]
    return cases


def _allowed(expected: Tensor, dtype: torch.dtype, arguments: Arguments) -> Tensor:
    """A float32 sum of `depth` products and a bias: each addition may err by a unit of the sum of
    magnitudes. Dot products of bfloat16 take what is below the normal numbers for zero. The sum is
    rounded once."""
    x, bias = arguments["input"].abs(), arguments["bias"]
    depth, columns = x.shape[-1], arguments["columns"]
    weight = gemm.unpack_linear(arguments["packed"], columns, depth).abs()
    magnitude = gemm.linear(x, weight, None if bias is None else bias.abs())
    tiny = 2.0**-126
    lost = gemm.linear(torch.ones_like(x), weight) + x.sum(-1, keepdim=True) + depth + 2
    summed = magnitude * ((depth + 2) * FLOAT32) + lost * tiny
    if dtype == torch.float32:
        return summed
    return summed + Tolerance(0.5).allowed(expected, dtype, arguments)


def _moved_bytes(arguments: Arguments) -> int:
    input = arguments["input"]
    rows = input.numel() // max(input.shape[-1], 1)
    bias = 0 if arguments["bias"] is None else arguments["bias"].nbytes
    to = arguments["dtype"] or input.dtype
    return (
        input.nbytes + arguments["packed"].nbytes + bias + to.itemsize * rows * arguments["columns"]
    )


def _pack_case(dtype: torch.dtype, columns: int, depth: int) -> Case:
    def make(inputs: Inputs) -> Arguments:
        # Said, since the reference cannot tell it off a weight that was made float64.
        weight = inputs.normal(columns, depth).to(dtype)
        return {"weight": weight, "unit": gemm.depth_unit(dtype)}

    kind = "ordinary" if columns * depth else "empty"
    return Case(f"{_short(dtype)}-{columns}x{depth}", make, kind)


def _unpack_case(dtype: torch.dtype, columns: int, depth: int) -> Case:
    def make(inputs: Inputs) -> Arguments:
        weight = inputs.normal(columns, depth).to(dtype)
        return {"packed": gemm.pack_linear(weight), "columns": columns, "depth": depth}

    kind = "ordinary" if columns * depth else "empty"
    return Case(f"{_short(dtype)}-{columns}x{depth}", make, kind)


OPS = (
    Op(
        name="packed_linear",
        family="gemm",
        reference=gemm.packed_linear,
        cases=tuple(_cases()),
        batch={"input": 0, "result": 0},
        views=("input",),
        allowed=_allowed,
        moved_bytes=_moved_bytes,
        operations=lambda a: 2 * a["input"].numel() * a["columns"],
        benchmarks=tuple(
            _case(torch.bfloat16, torch.bfloat16, (rows,), 3072, 576) for rows in (1, 8, 32, 1500)
        )
        + tuple(
            _case(torch.float32, torch.bfloat16, (rows,), 3072, 576, keep=keep)
            for keep in (False, True)
            for rows in (1, 8, 32, 1500)
        ),
    ),
    Op(
        name="pack_linear",
        family="gemm",
        reference=gemm.pack_linear,
        cases=tuple(
            _pack_case(dtype, columns, depth)
            for dtype in _DTYPES
            for columns, depth in (*_SHAPES, (0, 4), (4, 0))
        ),
        views=("weight",),
        allowed=Tolerance(0.0),
        moved_bytes=lambda a: 2 * a["weight"].nbytes,
        benchmarks=(_pack_case(torch.bfloat16, 3072, 576),),
    ),
    Op(
        name="unpack_linear",
        family="gemm",
        reference=gemm.unpack_linear,
        cases=tuple(
            _unpack_case(dtype, columns, depth)
            for dtype in _DTYPES
            for columns, depth in (*_SHAPES, (0, 4), (4, 0))
        ),
        allowed=Tolerance(0.0),
        moved_bytes=lambda a: 2 * a["packed"].nbytes,
        benchmarks=(_unpack_case(torch.bfloat16, 3072, 576),),
    ),
)
