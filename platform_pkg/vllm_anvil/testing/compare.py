# SPDX-License-Identifier: Apache-2.0
"""Compares results with float64's, element by element."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_anvil.testing.op_case import AllowedError, Arguments


@dataclass(frozen=True)
class Comparison:
    """How one result differs from what is expected.

    Attributes:
        worst: the largest error as a fraction of what is allowed: above 1 is too far. Infinite for
            a value that is NaN or infinite where another is expected, or the other way round.
        error: the largest absolute error.
        where: index of the worst element, or None where all are exact.
        problem: what is wrong besides values, such as a shape; None: nothing.
    """

    worst: float
    error: float
    where: tuple[int, ...] | None
    problem: str | None = None

    @property
    def passed(self) -> bool:
        return self.problem is None and self.worst <= 1.0


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
        problem = f"its shape is {list(actual.shape)} instead of {list(expected.shape)}"
        return Comparison(float("inf"), float("inf"), None, problem)
    values = actual.detach().cpu()
    if values.numel() == 0:
        return Comparison(0.0, 0.0, None)
    if not values.dtype.is_floating_point:
        wrong = values != expected
        bits = torch.where(wrong, torch.inf, 0.0)
        return _worst(bits, bits)
    bound = allowed(expected, values.dtype, arguments)
    # Beyond the dtype's range infinity is the right result.
    rounded = expected.to(values.dtype).double()
    values = values.double()
    expected = torch.where(rounded.isinf(), rounded, expected.double())
    same = (values == expected) | (values.isnan() & expected.isnan())
    error = torch.where(same, 0.0, (values - expected).abs()).nan_to_num(torch.inf, torch.inf)
    share = torch.where(error == 0, 0.0, error / bound.expand(error.shape))
    return _worst(share.nan_to_num(torch.inf, torch.inf), error)


def _worst(share: Tensor, error: Tensor) -> Comparison:
    flat = int(share.argmax())
    worst = float(share.flatten()[flat])
    if worst == 0.0:
        return Comparison(0.0, float(error.max()), None)
    where = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), share.shape))
    return Comparison(worst, float(error.flatten()[flat]), where)
