# SPDX-License-Identifier: Apache-2.0
"""What the narrow float formats hold and how numbers are rounded to them, by listing them all."""

from __future__ import annotations

import functools

import numpy as np
import torch

DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
    "f8E4M3FNUZ": torch.float8_e4m3fnuz,
    "f8E5M2FNUZ": torch.float8_e5m2fnuz,
}


@functools.cache
def values(name: str) -> np.ndarray:
    """The number of each code, as float64."""
    dtype = DTYPES[name]
    integers = torch.uint8 if dtype.itemsize == 1 else torch.int16
    codes = torch.arange(1 << (8 * dtype.itemsize)).to(integers)
    return codes.view(dtype).to(torch.float64).numpy()


@functools.cache
def _positives(name: str) -> np.ndarray:
    """The finite numbers from zero up; the index is the code."""
    numbers = values(name)[: len(values(name)) // 2]
    return numbers[np.isfinite(numbers)]


def rounded(x: np.ndarray, name: str, toward_zero: bool, saturates: bool) -> np.ndarray:
    """float64 as numbers of the format; NaN stays NaN."""
    numbers = _positives(name)
    greatest = numbers[-1]
    # The number that would follow the greatest tells from where on is rounded away from it.
    following = 2 * greatest - numbers[-2]
    size = np.abs(np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf))
    line = np.append(numbers, following)
    below = np.searchsorted(numbers, np.minimum(size, greatest), side="right") - 1
    middle = (line[below] + line[below + 1]) / 2
    up = (size > middle) | ((size == middle) & (below % 2 == 1))
    code = below + (up & ~np.bool_(toward_zero))
    result = np.append(numbers, greatest if saturates else np.inf)[code]
    if not saturates:
        result = np.where(np.isinf(size), np.inf, result)
    return np.where(np.isnan(x), np.nan, np.copysign(result, x))


def samples(name: str, count: int = 20000) -> np.ndarray:
    """Numbers of the format, the points half-way between them, and their neighbours in float64."""
    numbers = _positives(name)
    numbers = numbers[:: max(1, len(numbers) // 4000)]
    middles = (numbers[1:] + numbers[:-1]) / 2
    near = np.concatenate([numbers, middles])
    near = np.concatenate([near, np.nextafter(near, 0), np.nextafter(near, np.inf)])
    generator = np.random.default_rng(3)
    spread = 2.0 ** generator.uniform(np.log2(numbers[1]) - 3, np.log2(numbers[-1]) + 3, count)
    all_ = np.concatenate([near, spread, [numbers[-1] * 1.04, numbers[-1] * 1.2, 1e300, np.inf]])
    return np.concatenate([all_, -all_])
