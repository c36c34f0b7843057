# SPDX-License-Identifier: Apache-2.0
"""Softmax of each row, read once."""

import torch
import triton
import triton.language as tl
from comparison import compare

import vllm_anvil.triton  # noqa: F401  (makes the device Triton's target)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, row_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * row_stride
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_ptr + row + column, mask=mask, other=float("-inf"))
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row + column, numerator / tl.sum(numerator, axis=0), mask=mask)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax of a [rows, columns] float32 tensor along its columns."""
    out = torch.empty_like(x)
    rows, columns = x.shape
    softmax_kernel[(rows,)](x, out, x.stride(0), columns, BLOCK=triton.next_power_of_2(columns))
    return out


def main() -> None:
    x = torch.randn(512, 1000, device="anvil")
    compare("softmax", lambda: softmax(x), lambda: torch.softmax(x, -1), tolerance=1e-6)


if __name__ == "__main__":
    main()
