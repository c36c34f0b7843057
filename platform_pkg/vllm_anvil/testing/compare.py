# SPDX-License-Identifier: Apache-2.0
"""Compares results with float64's, element by element."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vllm_anvil.testing.op_case import UNIT, AllowedError, Arguments
from vllm_anvil.testing.result import SHARE_BINS, Comparison, failed

__all__ = ["SHARE_BINS", "Comparison", "compare", "failed"]


def compare(
    actual: Tensor, expected: Tensor, allowed: AllowedError, arguments: Arguments
) -> Comparison:
    """Compares `actual` with `expected`.

    Args:
        actual: what an op computed, on any device.
        expected: the same from float64 arguments, on the CPU; not rounded to the dtype of `actual`.
        allowed: gives what is allowed for each element.
        arguments: the call's arguments, widened to float64.
    """
    if actual.shape != expected.shape:
        return failed(f"its shape is {list(actual.shape)} instead of {list(expected.shape)}")
    values = actual.detach().cpu()
    if values.numel() == 0:
        return Comparison(0.0, 0.0, None)
    if not values.dtype.is_floating_point:
        share = torch.where(values != expected, torch.inf, 0.0).double()
        return _worst(share, share, values, expected)
    bound = allowed(expected, values.dtype, arguments).double().expand(expected.shape)
    error = _error(values, expected.double())
    share = torch.where(error == 0, 0.0, error / bound)
    # Where nothing at all is allowed, zeros have a sign.
    flipped = (
        (bound == 0) & (values == 0) & (values.double().signbit() != expected.double().signbit())
    )
    share = torch.where(flipped, torch.inf, share.nan_to_num(torch.inf, torch.inf))
    return _worst(share, error, values, expected)


def _error(values: Tensor, expected: Tensor) -> Tensor:
    """|values - expected| in float64; infinite where one is NaN, or one alone is infinite.

    Where the true result is finite and too large for the dtype, infinity is right, and so is a
    finite value whose distance from the first number that rounds to infinity is allowed.
    """
    wide = values.double()
    same = (wide == expected) | (wide.isnan() & expected.isnan())
    if values.dtype in UNIT and values.dtype != torch.float64:
        largest = torch.finfo(values.dtype).max
        last_place = 2.0 ** math.floor(math.log2(largest)) * UNIT[values.dtype]
        end = largest + last_place / 2
        finite = expected.isfinite()
        wide = torch.where(finite, wide.clamp(-end, end), wide)
        expected = torch.where(finite, expected.clamp(-end, end), expected)
    else:
        rounded = expected.to(values.dtype).double()
        expected = torch.where(rounded.isinf(), rounded, expected)
        same |= wide == expected
    return torch.where(same, 0.0, (wide - expected).abs()).nan_to_num(torch.inf, torch.inf)


def _worst(share: Tensor, error: Tensor, actual: Tensor, expected: Tensor) -> Comparison:
    flat = int(share.argmax())
    worst = float(share.flatten()[flat])
    shares = _count(share)
    if worst == 0.0:
        return Comparison(0.0, float(error.max()), None, shares=shares)
    where = _index(flat, share.shape)
    return Comparison(
        worst,
        float(error[where]),
        where,
        actual=actual[where].item(),
        expected=expected[where].item(),
        shares=shares,
    )


def _count(share: Tensor) -> tuple[int, ...]:
    low, high = SHARE_BINS[0], SHARE_BINS[-1] + 1
    exponents = share.flatten().double().log2().ceil().clamp(low, high).long()
    return tuple(torch.bincount(exponents - low, minlength=len(SHARE_BINS) + 1).tolist())


def _index(flat: int, shape: torch.Size) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(shape):
        flat, place = divmod(flat, size)
        index.insert(0, place)
    return tuple(index)
