# SPDX-License-Identifier: Apache-2.0
"""An op in C++. It is compiled when it is first imported, and kept in torch's extension cache."""

from pathlib import Path

import torch
from torch import Tensor
from torch.utils.cpp_extension import load

from vllm_anvil.testing.op_case import Arguments, Case, Inputs, Op, Tolerance

load(
    name="custom_op_example_relu_squared",
    sources=[str(Path(__file__).with_suffix(".cpp"))],
    extra_cflags=["-O2"],
    is_python_module=False,
)


def reference(x: Tensor) -> Tensor:
    """What the op computes: from float64 arguments in float64."""
    return x.clamp_min(0).square()


def case(rows: int, width: int, dtype: torch.dtype, kind: str = "ordinary") -> Case:
    def make(inputs: Inputs) -> Arguments:
        x = inputs.normal(rows, width, dtype=dtype)
        if kind == "extreme":
            # Rows whose squares are too large, too small, and zero.
            x[0] *= torch.finfo(dtype).max ** 0.6
            x[1] *= torch.finfo(dtype).smallest_normal
            x[2] = -0.0
        if kind == "special":
            x[1, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
        return {"x": x}

    return Case(f"{dtype}-{rows}x{width}-{kind}".removeprefix("torch."), make, kind)


DTYPES = (torch.float32, torch.bfloat16, torch.float16)

OPS = (
    Op(
        name="relu_squared",
        namespace="custom_op_example",
        family="activation",
        reference=reference,
        cases=(
            *(case(r, w, d) for d in DTYPES for r, w in ((1, 1), (7, 33), (40, 130))),
            *(case(4, 20, d, kind) for d in DTYPES for kind in ("extreme", "special")),
            case(0, 16, torch.float32, "empty"),
        ),
        views=("x",),
        batch={"x": 0, "result": 0},
        # One rounding of the square, for half precision after one in float32.
        allowed=Tolerance(units=0.51),
        moved_bytes=lambda arguments: 2 * arguments["x"].numel() * arguments["x"].element_size(),
        operations=lambda arguments: 2 * arguments["x"].numel(),
        benchmarks=(case(512, 4096, torch.bfloat16),),
    ),
)
