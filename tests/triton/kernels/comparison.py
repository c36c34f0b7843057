# SPDX-License-Identifier: Apache-2.0
"""Comparisons with a stated error, and tensors laid out as a kernel may meet them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

FLOAT32_EPSILON = float(np.finfo(np.float32).eps)


class Rows:
    """`values` [rows, width] on `device` as a view into something larger.

    There are `before` elements in front of each row and `after` behind it, all `fill`: the row
    stride is not the width, and nothing starts at zero or at an aligned address.
    """

    def __init__(
        self,
        values: Tensor,
        device: torch.device,
        before: int = 3,
        after: int = 4,
        fill: float = -77,
    ):
        *outer, width = values.shape
        self._fill = fill
        self._span = slice(before, before + width)
        self._whole = torch.full(
            (*outer, before + width + after), fill, dtype=values.dtype, device=device
        )
        self.view = self._whole[..., self._span]
        self.view.copy_(values)

    def cpu(self) -> Tensor:
        """The rows, after checking that nothing around them was written."""
        whole = self._whole.cpu()
        around = torch.ones(whole.shape[-1], dtype=torch.bool)
        around[self._span] = False
        assert (whole[..., around] == self._fill).all(), "written outside of the rows"
        return whole[..., self._span].contiguous()


def place(device: torch.device, *tensors: Tensor) -> list[Tensor]:
    """Copies of `tensors` on `device`, never the tensors themselves: kernels write in place."""
    return [tensor.detach().clone().to(device) for tensor in tensors]


def int32(values: Sequence[int] | np.ndarray, device: torch.device | str = "cpu") -> Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.int32).to(device)


def int64(values: Sequence[int] | np.ndarray, device: torch.device | str = "cpu") -> Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.int64).to(device)


def float32(values: Sequence[float] | np.ndarray, device: torch.device | str = "cpu") -> Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.float32).to(device)


def offsets(lengths: Sequence[int]) -> Tensor:
    """int32 [n + 1]: 0 and the running sums of `lengths`."""
    return int32(np.concatenate([[0], np.cumsum(lengths)]))


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    """Bit for bit in value, dtype and shape; NaN equals NaN."""
    torch.testing.assert_close(actual.cpu(), expected.cpu(), rtol=0, atol=0, equal_nan=True)


def assert_close_ulp(
    actual: Tensor, expected: Tensor, ulps: float = 4, magnitude: float = 0.0
) -> None:
    """float32 `actual` within `ulps` units in the last place of `expected` (any float dtype).

    The unit is the one of the expected value, or of `magnitude` where that is larger: what a
    result can lose that is the difference of two values of that size. Infinities and NaN must be
    at the same places.
    """
    assert actual.dtype == torch.float32
    found, wanted = actual.cpu().double(), expected.cpu().double()
    assert found.shape == wanted.shape
    finite = torch.isfinite(wanted)
    assert_equal(found[~finite], wanted[~finite])
    limit = ulps * FLOAT32_EPSILON * wanted.abs().clamp(min=max(magnitude, 1e-38))
    error = (found - wanted).abs()
    wrong = (finite & ~(error <= limit)).nonzero()
    assert not len(wrong), (
        f"{len(wrong)} of {wanted.numel()} beyond {ulps} ulp, first at {wrong[0].tolist()}: "
        f"{found[tuple(wrong[0])]!r}, expected {wanted[tuple(wrong[0])]!r}"
    )


def assert_close_rounded(
    actual: Tensor, expected: Tensor, ulps: float = 4, magnitude: float = 0.0
) -> None:
    """`actual` of a 16-bit dtype is a rounding of something within `ulps` of float32 `expected`.

    So it may be the neighbour of the reference's rounding only where that is nearly a tie. See
    `assert_close_ulp` for `magnitude`.
    """
    assert actual.dtype in (torch.bfloat16, torch.float16)
    wanted = expected.cpu().double()
    slack = ulps * FLOAT32_EPSILON * wanted.abs().clamp(min=magnitude)
    slack[~torch.isfinite(wanted)] = 0
    low, high = (wanted - slack).to(actual.dtype), (wanted + slack).to(actual.dtype)
    found = actual.cpu()
    inside = ((found >= low) & (found <= high)) | (found.isnan() & wanted.isnan())
    assert inside.all(), f"{int((~inside).sum())} of {found.numel()} are not the rounded value"


def chi_square_p_value(counts: Tensor, probabilities: Tensor) -> float:
    """The probability of a fit as bad as `counts` [n] have to `probabilities` [n], or worse.

    Cells that expect fewer than 5 are merged into one. A count where the probability is 0 gives 0.
    """
    counts, probabilities = counts.cpu().double(), probabilities.cpu().double()
    expected = probabilities / probabilities.sum() * counts.sum()
    if counts[expected == 0].sum() > 0:
        return 0.0
    small = expected < 5
    observed = torch.cat([counts[~small], counts[small].sum()[None]])
    expected = torch.cat([expected[~small], expected[small].sum()[None]])
    if expected[-1] < 5:
        # Too few even together: they go to the largest cell.
        largest = int(expected[:-1].argmax())
        observed[largest] += observed[-1]
        expected[largest] += expected[-1]
        observed, expected = observed[:-1], expected[:-1]
    assert len(observed) > 1, "nothing to compare"
    statistic = float(((observed - expected) ** 2 / expected).sum())
    freedom = (len(observed) - 1) / 2
    value = float(
        torch.special.gammaincc(
            torch.tensor(freedom).double(), torch.tensor(statistic / 2).double()
        )
    )
    assert not math.isnan(value)
    return value
