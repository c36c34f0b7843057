# SPDX-License-Identifier: Apache-2.0
"""References of vllm_anvil.ops.norm."""

import torch
from torch import Tensor

from .precision import compute_dtype


def rms_norm(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> Tensor:
    wide = x.to(compute_dtype(x, weight))
    return _scale(wide, weight, epsilon, variance_size, weight_offset).to(x.dtype)


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    dtype = compute_dtype(x, residual, weight)
    total = x.to(dtype) + residual.to(dtype)
    normed = _scale(total, weight, epsilon, variance_size, weight_offset)
    return normed.to(x.dtype), total.to(residual.dtype)


def fused_add_rms_norm_(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> None:
    normed, total = fused_add_rms_norm(x, residual, weight, epsilon, variance_size, weight_offset)
    x.copy_(normed)
    residual.copy_(total)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float) -> Tensor:
    wide = x.to(compute_dtype(x, weight, bias))
    centred = wide - wide.mean(-1, keepdim=True)
    result = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + epsilon)
    if weight is not None:
        result = result * weight.to(wide.dtype)
    if bias is not None:
        result = result + bias.to(wide.dtype)
    return result.to(x.dtype)


def _scale(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None,
    weight_offset: float,
) -> Tensor:
    measured = x if variance_size is None else x[..., :variance_size]
    result = x * torch.rsqrt(measured.square().mean(-1, keepdim=True) + epsilon)
    if weight is not None:
        result = result * (weight.to(x.dtype) + weight_offset)
    return result
