# SPDX-License-Identifier: Apache-2.0
"""An op in Triton: cap * tanh(x / cap), written over x. Models bound their logits with it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_anvil.testing.op_case import Arguments, Case, Inputs, Op, Tolerance

BLOCK = 256


@triton.jit
def _soft_cap(x, stride, width, cap, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    place = x + row * stride + column
    value = tl.load(place, mask=inside).to(tl.float32) / cap
    # By the exponential of a number that is not positive, which cannot overflow.
    size = tl.abs(value)
    e = tl.exp(-2 * size)
    tanh = (1 - e) / (1 + e)
    # For small numbers 1 - e loses what tanh's series has.
    square = size * size
    series = size * (1 - square * (0.33333334 - square * (0.13333334 - square * 0.053968254)))
    tanh = tl.where(size < 0.15, series, tanh)
    tanh = tl.where(value < 0, -tanh, tanh)
    tl.store(place, tanh * cap, mask=inside)


def soft_cap_(x: Tensor, cap: float) -> None:
    """``x`` [rows, width] in float32 or half precision, rows contiguous, **written**."""
    if x.device.type in ("anvil", "cpu"):
        import vllm_anvil.triton  # noqa: F401  Triton compiles for these from here on
    if x.numel():
        grid = (x.shape[0], triton.cdiv(x.shape[1], BLOCK))
        _soft_cap[grid](x, x.stride(0), x.shape[1], cap, BLOCK=BLOCK)


def reference(x: Tensor, cap: float) -> None:
    """What the op computes: from float64 arguments in float64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    x.copy_(cap * torch.tanh(x.to(wide) / cap))


def case(rows: int, width: int, dtype: torch.dtype, kind: str = "ordinary") -> Case:
    def make(inputs: Inputs) -> Arguments:
        x = inputs.normal(rows, width, dtype=dtype, scale=20.0)
        if kind == "extreme":
            x[0] *= 1e3
            x[1] *= 1e-4
            x[2] = 0.0
        if kind == "special":
            x[1, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
        return {"x": x, "cap": 30.0}

    return Case(f"{dtype}-{rows}x{width}-{kind}".removeprefix("torch."), make, kind)


DTYPES = (torch.float32, torch.bfloat16, torch.float16)

OPS = (
    Op(
        name="soft_cap_",
        namespace="custom_op_example",
        family="activation",
        reference=reference,
        call=soft_cap_,
        writes=("x",),  # no registered op, whose schema would say so
        cases=(
            *(case(r, w, d) for d in DTYPES for r, w in ((1, 1), (5, 255), (3, 600))),
            *(case(4, 20, d, kind) for d in DTYPES for kind in ("extreme", "special")),
            case(0, 16, torch.float32, "empty"),
        ),
        views=("x",),
        batch={"x": 0},
        # The exponential is a few units off, and so are the quotients.
        allowed=Tolerance(units=8.0),
        moved_bytes=lambda arguments: 2 * arguments["x"].numel() * arguments["x"].element_size(),
        benchmarks=(case(32, 49152, torch.float32),),
    ),
)
