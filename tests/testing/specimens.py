# SPDX-License-Identifier: Apache-2.0
"""Two small ops in plain torch that are no part of torch.ops."""

import torch
from torch import Tensor

from vllm_anvil.testing.op_case import Case, Inputs, Op, Tolerance


def scale_rows(x: Tensor, factor: Tensor) -> Tensor:
    """[rows, width] and [rows] -> [rows, width] of x's dtype."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x.to(wide) * factor.to(wide)[:, None]).to(x.dtype)


def _scale_rows_case(rows: int, width: int, dtype: torch.dtype, kind: str = "ordinary") -> Case:
    def make(inputs: Inputs) -> dict[str, Tensor]:
        x = inputs.normal(rows, width, dtype=dtype)
        if kind == "special":
            x[rows // 2, 0], x[rows // 2, 1] = torch.nan, torch.inf
        return {"x": x, "factor": inputs.normal(rows)}

    return Case(f"{dtype}-{rows}x{width}-{kind}".removeprefix("torch."), make, kind)


SCALE_ROWS = Op(
    "scale_rows",
    "specimen",
    scale_rows,
    (
        _scale_rows_case(7, 33, torch.float32),
        _scale_rows_case(1, 8, torch.bfloat16),
        _scale_rows_case(0, 8, torch.float32, "empty"),
        _scale_rows_case(4, 8, torch.float32, "special"),
    ),
    namespace="specimen",
    call=scale_rows,
    batch={"x": 0, "factor": 0, "result": 0},
    views=("x",),
)


def add_scaled(total: Tensor, x: Tensor, rows: Tensor, factor: float) -> None:
    """total[rows[i]] += factor * x[i], for [n, heads, width] tensors and distinct rows."""
    for i, row in enumerate(rows.tolist()):
        total[row] += factor * x[i]


def _add_scaled_arguments(inputs: Inputs) -> dict[str, object]:
    return {
        "total": inputs.normal(6, 3, 10),
        "x": inputs.normal(4, 3, 10),
        "rows": inputs.distinct(4, 6),
        "factor": 0.5,
    }


ADD_SCALED = Op(
    "add_scaled",
    "specimen",
    add_scaled,
    (Case("float32", _add_scaled_arguments),),
    namespace="specimen",
    call=add_scaled,
    batch={"x": 0, "rows": 0},
    views=("total", "x"),
    allowed=Tolerance(2.0, 1e-6),
    writes=("total",),
)
