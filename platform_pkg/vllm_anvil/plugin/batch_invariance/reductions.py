# SPDX-License-Identifier: Apache-2.0
"""Sums along dimensions, in one order: products with ones.

PyTorch's CPU kernels cut a long row into parts where it is the only one, and order the sums of
columns by how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vllm_anvil.plugin.batch_invariance.original import Original
from vllm_anvil.plugin.batch_invariance.products import PACKED


def sum_dim(
    original: Original,
    x: Tensor,
    dim: list[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    wanted = dtype or x.dtype
    if x.dtype not in PACKED or wanted not in PACKED or x.numel() == 0 or x.dim() == 0:
        return original(x, dim, keepdim, dtype=dtype)
    summed = sorted({one % x.dim() for one in dim} if dim else range(x.dim()))
    kept = [one for one in range(x.dim()) if one not in summed]
    shape = [x.shape[one] for one in kept]
    rows = x.permute(*kept, *summed).reshape(math.prod(shape), -1).float()
    result = torch.mm(rows, rows.new_ones(rows.shape[1], 1)).to(wanted)
    if keepdim:
        shape = [1 if one in summed else size for one, size in enumerate(x.shape)]
    return result.reshape(shape)


def nansum(
    original: Original,
    x: Tensor,
    dim: list[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    if x.dtype not in PACKED:
        return original(x, dim, keepdim, dtype=dtype)
    return torch.where(x.isnan(), 0, x).sum(dim, keepdim, dtype=dtype)


def logsumexp(original: Original, x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    if x.dtype not in PACKED or x.numel() == 0 or x.dim() == 0:
        return original(x, dim, keepdim)
    wide = x.float()
    greatest = wide.amax(dim, keepdim=True)
    # Where all is -inf, or something +inf, no difference to it is a number.
    base = torch.where(greatest.abs() == torch.inf, 0, greatest)
    result = (wide - base).exp().sum(dim, keepdim=True).log() + base
    if not keepdim:
        dims = {one % x.dim() for one in dim} or range(x.dim())
        result = result.reshape([size for one, size in enumerate(x.shape) if one not in dims])
    return result.to(x.dtype)


# Name of the operator -> what computes it.
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum.dim_IntList": sum_dim,
    "nansum": nansum,
    "logsumexp": logsumexp,
}
