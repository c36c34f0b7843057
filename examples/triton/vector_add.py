# SPDX-License-Identifier: Apache-2.0
"""The sum of two vectors."""

import torch
import triton
import triton.language as tl
from comparison import compare

import vllm_anvil.triton  # noqa: F401  (makes the device Triton's target)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < count
    total = tl.load(x_ptr + place, mask=mask) + tl.load(y_ptr + place, mask=mask)
    tl.store(out_ptr + place, total, mask=mask)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x + y for contiguous tensors of one shape and dtype."""
    out = torch.empty_like(x)
    block = 4096
    add_kernel[(triton.cdiv(x.numel(), block),)](x, y, out, x.numel(), BLOCK=block)
    return out


def main() -> None:
    x, y = (torch.randn(1_000_003, device="anvil") for _ in range(2))
    compare("vector add", lambda: add(x, y), lambda: x + y, tolerance=0)


if __name__ == "__main__":
    main()
