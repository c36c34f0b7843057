# SPDX-License-Identifier: Apache-2.0
"""Element-wise operations with NumPy: exact, or with the error that an implementation may have.

Integers wrap around. Every operation on floats rounds once, to its own type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz.formats import EPSILON, NUMPY, cast, greatest, round_to

# What transcendental functions may be off by, in units of the last place.
ULPS = 4.0

Arrays = list[np.ndarray]


def _wide(values: np.ndarray, dtype: str) -> np.ndarray:
    """Floats that arithmetic of half precision is done in, so that rounding it once is right."""
    return values.astype(np.float32) if dtype in ("f16", "bf16") else values


def _truncated_quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    quotient = a // b
    rest = a - quotient * b
    return quotient + ((rest != 0) & ((a < 0) != (b < 0))).astype(a.dtype)


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.fmod(a, b)
    return a - _truncated_quotient(a, b) * b


def _high_half(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of the product as unsigned numbers."""
    bits = a.dtype.itemsize * 8
    mask = (1 << bits) - 1
    a, b = np.broadcast_arrays(a, b)
    unsigned = np.dtype(f"uint{bits}")
    pairs = zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)
    high = [((x & mask) * (y & mask)) >> bits for x, y in pairs]
    return np.array(high, unsigned).reshape(a.shape).view(a.dtype)


def _fma(a: np.ndarray, b: np.ndarray, c: np.ndarray, dtype: str) -> np.ndarray:
    """Of types up to float32: exact in float64 but for the sum, which is rounded to odd."""
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = product + addend
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    bits = np.atleast_1d(total).view(np.int64)
    even = (bits & 1) == 0
    inexact = np.isfinite(total) & (np.nan_to_num(np.atleast_1d(lost)) != 0)
    toward_zero = (np.atleast_1d(lost) < 0) == (np.atleast_1d(total) > 0)
    odd = np.where(even & inexact, np.where(toward_zero, bits - 1, bits + 1), bits)
    result = odd.view(np.float64).reshape(total.shape)
    return cast(result, "f64", dtype)


def _bitcast(values: np.ndarray, source: str, target: str) -> np.ndarray:
    if source == "bf16":
        values = (np.atleast_1d(values).view(np.uint32) >> 16).astype(np.uint16)
    values = np.atleast_1d(values)
    if target == "bf16":
        return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return values.view(NUMPY[target])


_BINARY: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "div": np.divide,
    "mod": _remainder,
    "floordiv": _truncated_quotient,
    "minimum": np.fmin,
    "maximum": np.fmax,
    "minimum_nan": np.minimum,
    "maximum_nan": np.maximum,
    "floor": np.floor,
    "ceil": np.ceil,
    "sqrt": np.sqrt,
    "sqrt_rn": np.sqrt,
    "abs": np.abs,
    "neg": np.negative,
    "not": np.invert,
    "umulhi": _high_half,
}
_COMPARISONS: dict[str, Callable[..., np.ndarray]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _erf(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(value) for value in x.ravel().tolist()]).reshape(x.shape)


_TRANSCENDENTAL: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": _erf,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
# The sigmoid is an exponential and two more operations.
_MORE_ULPS = {"sigmoid": 8.0, "rsqrt": 2.0, "erf": 1.0}


def is_elementwise(op: str) -> bool:
    others = ("copy", "cast", "bitcast", "fma", "clamp", "clamp_nan")
    return op in _BINARY or op in _COMPARISONS or op in others


def is_transcendental(op: str) -> bool:
    return op in _TRANSCENDENTAL


def elementwise(op: str, arrays: Arrays, source: str, target: str) -> np.ndarray:
    """Operands of the dtype `source`; a result of the dtype `target`."""
    if op == "copy":
        return arrays[0]
    if op == "cast":
        return cast(arrays[0], source, target)
    if op == "bitcast":
        return _bitcast(arrays[0], source, target).reshape(arrays[0].shape)
    if op == "fma":
        return _fma(*arrays, target)
    if op in ("clamp", "clamp_nan"):
        x, low, high = arrays
        clamped = np.fmin(np.fmax(x, low), high)
        return np.where(np.isnan(x), x, clamped) if op == "clamp_nan" else clamped
    if op in _COMPARISONS:
        return _COMPARISONS[op](*arrays)
    wide = [_wide(array, source) for array in arrays]
    result = np.asarray(_BINARY[op](*wide))
    return round_to(result, target) if result.dtype.kind == "f" else result


def transcendental(op: str, x: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The value and its error, both float64."""
    precise = x.astype(np.longdouble if dtype == "f64" and op != "erf" else np.float64)
    value = np.asarray(_TRANSCENDENTAL[op](precise))
    error = error_of(value, dtype, ULPS + _MORE_ULPS.get(op, 0.0))
    if op == "sigmoid":
        # Where the exponential overflows, the quotient is zero rather than denormal.
        error = np.maximum(error, float(np.finfo(NUMPY[dtype]).smallest_normal))
    return value.astype(np.float64), error


def error_of(value: np.ndarray, dtype: str, ulps: float) -> np.ndarray:
    """`ulps` of a value's last place; unlimited where it is about to overflow."""
    size = np.abs(value).astype(np.float64)
    tiny = float(np.finfo(NUMPY[dtype]).smallest_subnormal)
    error = ulps * np.maximum(2 * EPSILON[dtype] * size, tiny)
    close = np.isfinite(size) & (size > 0.999 * greatest(dtype))
    return np.where(close, np.inf, error)


def literal(value: Any, dtype: str) -> np.ndarray:
    if NUMPY[dtype] is np.float32 and dtype != "f32":
        return cast(np.array(float(value)), "f64", dtype)
    return np.array(value, NUMPY[dtype])
