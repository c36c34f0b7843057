# SPDX-License-Identifier: Apache-2.0
"""Cases of vllm_anvil.ops.gemm."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_anvil.references import gemm
from vllm_anvil.testing.op_case import Arguments, Case, Inputs, Op
from vllm_anvil.testing.rounding import FLOAT32

_INPUTS = (torch.float32, torch.bfloat16, torch.float16)
_WEIGHTS = (torch.bfloat16, torch.float16)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _case(
    input: torch.dtype,
    weight: torch.dtype,
    rows: tuple[int, ...],
    columns: int,
    depth: int,
    *,
    bias: torch.dtype | None = None,
    kind: str = "ordinary",
    scales: tuple[float, float] = (1.0, 1.0),
    spoil: bool = False,
    name: str = "",
) -> Case:
    """`scales`: of the input and of the weight; `spoil`: with NaN and infinities in both."""

    def make(inputs: Inputs) -> Arguments:
        x = inputs.normal(*rows, depth, scale=scales[0]).to(input)
        w = inputs.normal(columns, depth, scale=scales[1]).to(weight)
        if spoil:
            flat = x.view(-1, depth)
            flat[0, 0], flat[1, depth - 1], flat[2, depth // 2] = torch.inf, torch.nan, -torch.inf
            w[0, 1], w[1, depth - 1] = torch.inf, torch.nan
        offsets = None if bias is None else inputs.normal(columns).to(bias)
        return {"input": x, "weight": w, "bias": offsets}

    shape = "x".join(map(str, rows))
    return Case(
        f"{_short(input)}-{_short(weight)}-rows{shape}-{columns}x{depth}"
        f"{'' if bias is None else '-bias-' + _short(bias)}{name}",
        make,
        kind,
    )


def _cases() -> list[Case]:
    cases = []
    for weight in _WEIGHTS:
        for input in _INPUTS:
            cases += [
                _case(input, weight, (5,), 9, 16),
                _case(input, weight, (1,), 40, 576, bias=weight),
                _case(input, weight, (2, 3), 7, 33, bias=torch.float32),
            ]
        of = torch.float32
        cases += [
            _case(of, weight, (rows,), columns, depth)
            for rows in (1, 2, 3, 4, 7, 67)
            for columns, depth in ((1, 1), (3, 15), (33, 31), (13, 130))
        ] + [
            _case(of, weight, (0,), 9, 16, kind="empty"),
            _case(of, weight, (4,), 0, 16, kind="empty"),
            _case(of, weight, (4,), 9, 0, kind="empty", bias=weight),
            _case(of, weight, (6,), 10, 40, spoil=True, kind="special", name="-nan-and-infinity"),
            _case(of, weight, (6,), 10, 40, scales=(1e30, 1e3), kind="extreme", name="-large"),
            _case(of, weight, (6,), 10, 40, scales=(1e-38, 1e-4), kind="extreme", name="-small"),
            _case(of, weight, (6,), 10, 40, scales=(0.0, 1.0), kind="extreme", name="-zeros"),
        ]
    return cases


def _allowed(expected: Tensor, dtype: torch.dtype, arguments: Arguments) -> Tensor:
    """A float32 sum of `depth` products and a bias: each addition may err by a unit of the sum of
    magnitudes. Below the normal numbers a product errs by the smallest number."""
    depth = arguments["weight"].shape[1]
    bias = arguments["bias"]
    magnitude = gemm.linear(
        arguments["input"].abs(), arguments["weight"].abs(), None if bias is None else bias.abs()
    )
    return magnitude * ((depth + 2) * FLOAT32) + (depth + 2) * 2.0**-149


def _moved_bytes(arguments: Arguments) -> int:
    input, weight = arguments["input"], arguments["weight"]
    rows = input.numel() // max(weight.shape[1], 1)
    bias = 0 if arguments["bias"] is None else arguments["bias"].nbytes
    return input.nbytes + weight.nbytes + bias + 4 * rows * weight.shape[0]


OPS = (
    Op(
        name="linear",
        family="gemm",
        reference=gemm.linear,
        cases=tuple(_cases()),
        batch={"input": 0, "result": 0},
        views=("input", "weight"),
        allowed=_allowed,
        moved_bytes=_moved_bytes,
        operations=lambda a: 2 * a["input"].numel() * a["weight"].shape[0],
        benchmarks=tuple(
            _case(torch.float32, torch.bfloat16, (rows,), 1536, 576) for rows in (1, 32, 512)
        ),
    ),
)
