# SPDX-License-Identifier: Apache-2.0
"""Element types in NumPy: what holds their values, and rounding to them.

bf16 and the 8-bit floats are float32 arrays whose values the narrow type has.
"""

from __future__ import annotations

import numpy as np
import torch

NUMPY: dict[str, type] = {
    "i1": np.bool_,
    **{f"i{bits}": getattr(np, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": getattr(np, f"uint{bits}") for bits in (8, 16, 32, 64)},
    "f16": np.float16,
    "bf16": np.float32,
    "f32": np.float32,
    "f64": np.float64,
    "f8e4m3": np.float32,
    "f8e5m2": np.float32,
}
TORCH: dict[str, torch.dtype] = {
    "i1": torch.bool,
    **{f"i{bits}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": getattr(torch, f"uint{bits}") for bits in (8, 16, 32, 64)},
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
}
# Of one rounding, relative.
EPSILON = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}
# Mantissa bits, the exponent of the smallest normal number, and the greatest number.
_FLOAT8 = {"f8e4m3": (3, -6, 448.0), "f8e5m2": (2, -14, 57344.0)}


def to_torch(dtype: str, values: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor if tensor.dtype == TORCH[dtype] else tensor.to(TORCH[dtype])


def from_torch(dtype: str, tensor: torch.Tensor) -> np.ndarray:
    if dtype in ("bf16", "f8e4m3", "f8e5m2"):
        tensor = tensor.to(torch.float32)
    return tensor.numpy()


def greatest(dtype: str) -> float:
    if dtype == "bf16":
        return float.fromhex("0x1.FEp127")
    return float(np.finfo(NUMPY[dtype]).max)


def cast(values: np.ndarray, source: str, target: str) -> np.ndarray:
    """A conversion, rounding once, to nearest even; integers wrap."""
    if source == target:
        return values
    if target == "i1":
        return values != 0
    if NUMPY[target] is not np.float32 or target == "f32":
        return values.astype(NUMPY[target])
    if values.dtype.kind in "iu":
        values = _sticky(values)
    values = values.astype(np.float64)
    return _to_bf16(values) if target == "bf16" else _to_float8(values, target)


def _sticky(values: np.ndarray) -> np.ndarray:
    """Integers that a float64 holds exactly and that round to fewer bits as the given ones do."""
    if values.dtype.itemsize < 8:
        return values
    upper = values & ~values.dtype.type(2047)
    odd = upper | ((values != upper).astype(values.dtype) << values.dtype.type(11))
    size = np.abs(values.astype(np.float64))
    return np.where(size >= 2.0**53, odd, values)


def to_odd_f32(values: np.ndarray) -> np.ndarray:
    """float64 as float32, the last bit set where it is inexact: it may be rounded once more."""
    near = values.astype(np.float32)
    beyond = np.abs(near.astype(np.float64)) > np.abs(values)
    toward_zero = np.where(beyond, np.nextafter(near, np.float32(0)), near)
    inexact = np.isfinite(values) & (toward_zero.astype(np.float64) != values)
    return (toward_zero.view(np.uint32) | inexact.astype(np.uint32)).view(np.float32)


def _to_bf16(values: np.ndarray) -> np.ndarray:
    bits = to_odd_f32(np.atleast_1d(values)).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    result = (rounded << np.uint32(16)).view(np.float32).reshape(values.shape)
    return np.where(np.isnan(values), np.float32(np.nan), result)


def _to_float8(values: np.ndarray, target: str) -> np.ndarray:
    mantissa, lowest, most = _FLOAT8[target]
    _, exponent = np.frexp(values)
    step = np.ldexp(1.0, np.maximum(exponent - 1, lowest) - mantissa)
    finite = np.where(np.isfinite(values), values, np.copysign(most, values))
    rounded = np.clip(np.rint(finite / step) * step, -most, most)
    return np.where(np.isnan(values), np.nan, rounded).astype(np.float32)


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """What arithmetic in float32 or float64 gives, rounded to a float type."""
    return cast(values, "f64" if values.dtype == np.float64 else "f32", dtype)
