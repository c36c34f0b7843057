# SPDX-License-Identifier: Apache-2.0
"""References of vllm_anvil.ops.gemm."""

import torch
from torch import Tensor

from .precision import compute_dtype, wide_dtype

STRIP_COLUMNS = 16


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    dtype = compute_dtype(input, weight, bias)
    result = input.to(dtype) @ weight.to(dtype).T
    if bias is not None:
        result = result + bias.to(dtype)
    return result.to(wide_dtype(input, weight, bias))


def depth_unit(dtype: torch.dtype) -> int:
    """Elements of the depth that lie side by side in a packed weight."""
    return 2 if dtype == torch.bfloat16 else 1


def packed_shape(columns: int, depth: int, unit: int) -> tuple[int, ...]:
    shape = (-(-columns // STRIP_COLUMNS), -(-depth // unit), STRIP_COLUMNS)
    return shape if unit == 1 else (*shape, unit)


def pack_linear(weight: Tensor, unit: int | None = None) -> Tensor:
    columns, depth = weight.shape
    unit = depth_unit(weight.dtype) if unit is None else unit
    shape = packed_shape(columns, depth, unit)
    whole = weight.new_zeros(shape[0] * STRIP_COLUMNS, shape[1] * unit)
    whole[:columns, :depth] = weight
    strips = whole.view(shape[0], STRIP_COLUMNS, shape[1], unit).transpose(1, 2)
    return strips.contiguous().view(shape)


def unpack_linear(packed: Tensor, columns: int, depth: int) -> Tensor:
    strips, units, width, unit = packed.shape if packed.dim() == 4 else (*packed.shape, 1)
    whole = packed.view(strips, units, width, unit).transpose(1, 2)
    whole = whole.reshape(strips * width, units * unit)
    return whole[:columns, :depth].clone(memory_format=torch.contiguous_format)


def rounded(input: Tensor, dtype: torch.dtype | None, keep_remainders: bool = False) -> Tensor:
    """``input [..., depth]`` rounded to ``dtype``, in its own; with ``keep_remainders``, but for
    one pair of neighbours of each four: what it loses is rounded and added. That is the pair with
    the largest loss, of which 22 bits of 24 count; of equals the first."""
    if dtype is None:
        return input
    values = input.to(dtype).to(input.dtype)
    if not keep_remainders:
        return values
    depth = input.shape[-1]
    single = torch.nn.functional.pad(input.float(), (0, -depth % 8))
    rest = single - single.to(dtype).float()
    rest = torch.where(rest.isfinite(), rest, 0.0)
    lost = rest.abs().view(*rest.shape[:-1], -1, 4, 2).amax(-1)
    keys = (lost.view(torch.int32) & ~3) | torch.arange(
        3, -1, -1, dtype=torch.int32, device=input.device
    )
    kept = keys == keys.amax(-1, keepdim=True)
    kept = kept.unsqueeze(-1).expand(*kept.shape, 2).reshape(rest.shape)
    kept_rest = torch.where(kept, rest.to(dtype).to(input.dtype), 0.0)
    return values + kept_rest[..., :depth]


def packed_linear(
    input: Tensor,
    packed: Tensor,
    columns: int,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
    input_dtype: torch.dtype | None = None,
    rows_in_use: Tensor | None = None,
    keep_remainders: bool = False,
) -> Tensor:
    """Rows that are not in use are zero here."""
    x = rounded(input, input_dtype, keep_remainders)
    result = linear(x.to(compute_dtype(input)), unpack_linear(packed, columns, x.shape[-1]), bias)
    if rows_in_use is not None:
        result.view(-1, columns)[rows_in_use.item() :] = 0
    if input.dtype == torch.float64:
        return result
    return result.to(input.dtype if dtype is None else dtype)
