# SPDX-License-Identifier: Apache-2.0
"""Conversions between the float formats, by bits where the processor has none or an inexact one.

Every narrowing rounds once, to nearest even or toward zero, whatever lies between the two formats:
float64 first becomes a float32 whose last bit says that something was left off.
"""

from __future__ import annotations

from vllm_anvil.triton_backend.emit.float8 import from_float8, to_float8
from vllm_anvil.triton_backend.emit.vectors import Lanes
from vllm_anvil.triton_backend.ttir.model import ScalarType

_QUIET_NAN_BF16 = 0x7FC0


def widened(x: Lanes, source: ScalarType) -> Lanes:
    """A float of any format narrower than float64 as float32, exactly; NaN stays NaN."""
    if source.name == "f32":
        return x
    if source.name == "f16":
        return x.cast("fpext", x.floats(32))
    if source.name == "bf16":
        return (x.cast("zext", x.integers(32)) << 16).as_floats()
    return from_float8(x, source)


def converted(x: Lanes, source: ScalarType, target: ScalarType, toward_zero: bool = False) -> Lanes:
    """A float in another format; the rounding counts where the target has less precision.

    Beyond the target's range, float16 and bfloat16 become infinite (rounded toward zero: the
    greatest finite number) and 8-bit floats the greatest finite number (see `float8`).
    """
    if source == target:
        return x
    if source.name == "f64":
        if target.name == "f32":
            return _float64_to_float32(x, toward_zero)
        x = _float64_to_odd_float32(x)
    else:
        x = widened(x, source)
    if target.name == "f64":
        return x.widened()
    if target.name == "f32":
        return x
    if target.name == "f16":
        return _to_float16(x, toward_zero)
    if target.name == "bf16":
        return _to_bfloat16(x, toward_zero)
    return to_float8(x, target, toward_zero)


def narrowed(x: Lanes, target: ScalarType) -> Lanes:
    """float32 rounded to nearest even in a format of at most its precision."""
    return converted(x, ScalarType("f32"), target)


def _to_bfloat16(x: Lanes, toward_zero: bool) -> Lanes:
    bits = x.as_integers()
    if not toward_zero:
        bits = bits + ((bits.unsigned_shift_right(16) & 1) + 0x7FFF)
    upper = x.is_nan().choose(_QUIET_NAN_BF16, bits.unsigned_shift_right(16))
    return upper.cast("trunc", x.integers(16))


def _to_float16(x: Lanes, toward_zero: bool) -> Lanes:
    nearest = x.cast("fptrunc", x.floats(16))
    if not toward_zero:
        return nearest
    return _stepped_back(nearest, nearest.cast("fpext", x.type), x)


def _float64_to_float32(x: Lanes, toward_zero: bool) -> Lanes:
    nearest = x.narrowed()
    return _stepped_back(nearest, nearest.widened(), x) if toward_zero else nearest


def _stepped_back(nearest: Lanes, value: Lanes, exact: Lanes) -> Lanes:
    """`nearest`, whose value is given, or the next toward zero where it is beyond `exact`."""
    beyond = value.absolute() > exact.absolute()
    bits = nearest.as_integers()
    return (bits - beyond.cast("zext", bits.type)).as_floats()


def _float64_to_odd_float32(x: Lanes) -> Lanes:
    """float32 with the last bit set where it is inexact: rounding it again rounds as if at once."""
    truncated = _float64_to_float32(x, toward_zero=True)
    inexact = truncated.widened().absolute() < x.absolute()
    bits = truncated.as_integers()
    return (bits | inexact.cast("zext", bits.type)).as_floats()
