# SPDX-License-Identifier: Apache-2.0
"""Matrix products whose results are sums in one order, by `torch.ops.anvil.packed_linear`.

What PyTorch's operator of the same name computes, on anvil tensors. Products of whole numbers are
exact in any order and stay PyTorch's; those of float64 and complex numbers are made row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vllm_anvil.ops.gemm import pack_linear, packed_linear
from vllm_anvil.plugin.batch_invariance.original import Original

PACKED = (torch.float32, torch.bfloat16, torch.float16)


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None, wide: bool = False) -> Tensor:
    """a [rows, depth] times b [depth, columns], plus bias [columns]; `wide`: not rounded."""
    columns = b.shape[1]
    weight = b.t()
    if weight.shape[1] > 1 and weight.stride(1) != 1:
        weight = weight.contiguous()
    dtype = torch.float32 if wide else a.dtype
    return packed_linear(a, pack_linear(weight), columns, bias, dtype)


def mm(original: Original, a: Tensor, b: Tensor) -> Tensor:
    if a.numel() == 0 or b.numel() == 0 or not (a.is_floating_point() or a.is_complex()):
        return original(a, b)
    if a.dtype not in PACKED or b.dtype != a.dtype or a.shape[1] != b.shape[0]:
        return torch.cat([original(row, b) for row in a.split(1)])
    return _product(a, b)


def addmm(
    original: Original, offset: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    rows = (a.shape[0], b.shape[1])
    if a.numel() == 0 or b.numel() == 0 or not (a.is_floating_point() or a.is_complex()):
        return original(offset, a, b, beta=beta, alpha=alpha)
    if a.dtype not in PACKED or not a.dtype == b.dtype == offset.dtype or a.shape[1] != b.shape[0]:
        offsets = offset.expand(rows).split(1)
        parts = zip(offsets, a.split(1), strict=True)
        return torch.cat([original(one, row, b, beta=beta, alpha=alpha) for one, row in parts])
    if beta == 1 and alpha == 1 and offset.dim() == 1 and offset.shape[0] == b.shape[1]:
        return _product(a, b, offset)
    result = _product(a, b, wide=True) * alpha
    # As PyTorch has it: with beta 0 the offset is not looked at, whatever is in it.
    if beta != 0:
        result = result + offset.expand(rows).float() * beta
    return result.to(a.dtype)


def mv(original: Original, matrix: Tensor, vector: Tensor) -> Tensor:
    return torch.mm(matrix, vector.unsqueeze(1)).squeeze(1)


def addmv(
    original: Original,
    offset: Tensor,
    matrix: Tensor,
    vector: Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> Tensor:
    offset = offset.expand(matrix.shape[0]).unsqueeze(1)
    return torch.addmm(offset, matrix, vector.unsqueeze(1), beta=beta, alpha=alpha).squeeze(1)


def dot(original: Original, a: Tensor, b: Tensor) -> Tensor:
    if a.dim() != 1 or a.shape != b.shape:
        return original(a, b)
    return torch.mm(a.unsqueeze(0), b.unsqueeze(1)).reshape(())


def baddbmm(
    original: Original, offset: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.numel() * b.numel() == 0:
        return original(offset, a, b, beta=beta, alpha=alpha)
    offsets = offset.expand(a.shape[0], a.shape[1], b.shape[2])
    parts = zip(offsets, a, b, strict=True)
    return torch.stack([torch.addmm(*part, beta=beta, alpha=alpha) for part in parts])


def convolution(original: Original, input: Tensor, weight: Tensor, *others: Any) -> Tensor:
    """One sample after the other: each is convolved as it is alone."""
    if input.shape[0] <= 1:
        return original(input, weight, *others)
    return torch.cat([original(one, weight, *others) for one in input.split(1)])


# Name of the operator -> what computes it.
PRODUCTS: dict[str, Callable[..., Tensor]] = {
    "mm": mm,
    "addmm": addmm,
    "mv": mv,
    "addmv": addmv,
    "dot": dot,
    "baddbmm": baddbmm,
    "convolution_overrideable": convolution,
}
