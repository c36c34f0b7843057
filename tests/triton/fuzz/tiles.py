# SPDX-License-Identifier: Apache-2.0
"""Operations on whole tiles with NumPy: shapes, reductions, scans, products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz.arithmetic import error_of
from fuzz.combines import COMBINES
from fuzz.formats import EPSILON, NUMPY, cast, greatest
from fuzz.programs import FLOATS, Type

Attributes = dict[str, Any]


# Changes of shape: the same on values and on their errors


MOVES: dict[str, Callable[..., Any]] = {
    "splat": lambda type_, a, x: np.broadcast_to(x, type_.shape),
    "broadcast": lambda type_, a, x: np.broadcast_to(x, type_.shape),
    "expand": lambda type_, a, x: np.expand_dims(x, a["axis"]),
    "reshape": lambda type_, a, x: x.reshape(type_.shape),
    "ravel": lambda type_, a, x: x.reshape(-1),
    "trans": lambda type_, a, x: x.swapaxes(-1, -2),
    "permute": lambda type_, a, x: np.transpose(x, a["order"]),
    "join": lambda type_, a, x, y: np.stack(np.broadcast_arrays(x, y), axis=-1),
    "split": lambda type_, a, x: (x[..., 0], x[..., 1]),
    "cat": lambda type_, a, x, y: np.concatenate([x, y], axis=a["axis"]),
    "interleave": lambda type_, a, x, y: np.stack([x, y], axis=-1).reshape(type_.shape),
    "flip": lambda type_, a, x: np.flip(x, a["axis"]),
}


# Reductions and scans


def _reduced(function: np.ufunc, x: np.ndarray, a: Attributes) -> np.ndarray:
    return function.reduce(x, axis=a["axis"], keepdims=a["keep"], dtype=x.dtype)


def _place(function: Callable[..., np.ndarray], x: np.ndarray, a: Attributes) -> np.ndarray:
    places = function(x, axis=a["axis"]).astype(np.int32)
    return np.expand_dims(places, a["axis"]) if a["keep"] else places


_PLAIN = {"max": np.fmax, "min": np.fmin, "xor_sum": np.bitwise_xor, "reduce_or": np.bitwise_or}


def reduction(
    op: str, x: np.ndarray, dtype: str, types: list[Type], a: Attributes
) -> list[np.ndarray] | None:
    """What is exact of the reductions and scans of one tile; None where `op` is another."""
    target = types[0].dtype
    if op in _PLAIN:
        return [_reduced(_PLAIN[op], cast(x, dtype, target), a)]
    if op in ("argmax", "argmin"):
        return [_place(getattr(np, op), x, a)]
    if op in ("max_and_place", "min_and_place"):
        arg = np.argmax if op.startswith("max") else np.argmin
        return [_reduced(_PLAIN[op[:3]], x, a), _place(arg, x, a)]
    if op == "sum" and target not in FLOATS:
        return [_reduced(np.add, cast(x, dtype, target), a)]
    if op in ("cumsum", "cumprod") and target not in FLOATS:
        x = _oriented(cast(x, dtype, target), a)
        function = np.add if op == "cumsum" else np.multiply
        return [_oriented(function.accumulate(x, axis=a["axis"], dtype=x.dtype), a)]
    if op == "sort":
        ordered = np.sort(x, axis=-1)
        return [np.flip(ordered, -1) if a["descending"] else ordered]
    if op == "topk":
        return [np.flip(np.sort(x, axis=-1), -1)[..., : a["k"]]]
    return None


def _oriented(x: np.ndarray, a: Attributes) -> np.ndarray:
    return np.flip(x, a["axis"]) if a["reverse"] else x


def combined(op: str, values: list[np.ndarray], a: Attributes) -> list[np.ndarray]:
    """`tl.reduce` and `tl.associative_scan` with a function of `combines`, in order."""
    axis, combine = a["axis"], COMBINES[a["combine"]]
    rows = [np.moveaxis(value, axis, 0) for value in values]
    if op == "scan" and a["reverse"]:
        rows = [np.flip(row, 0) for row in rows]
    total = [np.asarray(row[0]) for row in rows]
    steps = [total]
    for index in range(1, len(rows[0])):
        made = combine.evaluate(*total, *(row[index] for row in rows))
        total = [np.asarray(m).astype(t.dtype) for m, t in zip(made, total, strict=True)]
        steps.append(total)
    if op == "reduce":
        return [np.expand_dims(one, axis) if a["keep"] else one for one in total]
    scanned = [np.stack(column) for column in zip(*steps, strict=True)]
    if a["reverse"]:
        scanned = [np.flip(one, 0) for one in scanned]
    return [np.moveaxis(one, 0, axis) for one in scanned]


def histogram(x: np.ndarray, bins: int, mask: np.ndarray | None) -> np.ndarray:
    counted = (x >= 0) & (x < bins)
    if mask is not None:
        counted &= np.broadcast_to(mask, x.shape)
    return np.bincount(x[counted], minlength=bins).astype(np.int32)


# Sums of floats, whose order is left open: values and errors


def float_sum(op: str, x: np.ndarray, dtype: str, a: Attributes) -> tuple[np.ndarray, np.ndarray]:
    """`sum` and `cumsum`: off by at most a rounding of each partial sum."""
    wide, count = x.astype(np.float64), x.size if a["axis"] is None else x.shape[a["axis"]]
    if op == "sum":
        value = np.sum(wide, axis=a["axis"], keepdims=a["keep"])
        size = np.sum(np.abs(wide), axis=a["axis"], keepdims=a["keep"])
    else:
        value = _oriented(np.cumsum(_oriented(wide, a), axis=a["axis"]), a)
        size = _oriented(np.cumsum(_oriented(np.abs(wide), a), axis=a["axis"]), a)
    return _bounded(value, size, count, dtype)


def _bounded(
    value: np.ndarray, size: np.ndarray, count: int, dtype: str
) -> tuple[np.ndarray, np.ndarray]:
    # The least number more, so that a sum of zeros may have either sign.
    error = (count + 1) * EPSILON[dtype] * size + float(np.finfo(NUMPY[dtype]).smallest_subnormal)
    may_overflow = np.isfinite(size) & (size > greatest(dtype) / 2)
    return np.asarray(value), np.where(may_overflow, np.inf, error)


def dot(
    values: list[np.ndarray], target: str, acc: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """A product of matrices, or of stacks of them."""
    if target == "i32":
        product = np.matmul(*(value.astype(np.int32) for value in values))
        return product if acc is None else product + acc, None
    first, second = (value.astype(np.float64) for value in values)
    product, size = first @ second, np.abs(first) @ np.abs(second)
    if acc is not None:
        product, size = product + acc, size + np.abs(acc)
    count = first.shape[-1] + 1
    value, error = _bounded(product, size, count, target)
    # A processor's bf16 products may take denormal numbers for zero.
    peak = np.max(np.abs(np.concatenate([first.ravel(), second.ravel()])))
    flushed = count * 2.0**-126 * (1 + np.where(np.isfinite(peak), peak, 0))
    if target == "f32":
        error = error + flushed
    # Small whole numbers are summed exactly; a zero's sign is known where none is negative.
    integral = all(np.all(part == np.rint(part)) for part in (first, second, value))
    if integral and np.all(size < 2.0**24):
        if not any(np.signbit(part).any() for part in (first, second, value)):
            return value, None
        error = np.where(value == 0, error, 0)
    return value, error


def softmax(x: np.ndarray, dtype: str, axis: int) -> tuple[np.ndarray, np.ndarray]:
    wide = x.astype(np.float64)
    distance = wide - np.max(wide, axis=axis, keepdims=True)
    powers = np.exp(distance)
    value = powers / np.sum(powers, axis=axis, keepdims=True)
    ulps = 16 + x.shape[axis] + np.where(np.isfinite(distance), np.abs(distance), 0)
    return value, error_of(value, dtype, 1.0) * ulps


def numpy_dtype(dtype: str) -> Any:
    return np.int64 if dtype.startswith("*") else NUMPY[dtype]
