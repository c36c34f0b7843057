# SPDX-License-Identifier: Apache-2.0
"""asin, acos, atan and atan2."""

from __future__ import annotations

from vllm_anvil.triton_backend.emit.math.formats import in_float64
from vllm_anvil.triton_backend.emit.vectors import Lanes, horner

# (atan(sqrt(z)) / sqrt(z) - 1) / z for sqrt(z) <= tan(pi / 8).
_ATAN = (
    -0.3333333333333333,
    0.19999999999999274,
    -0.1428571428556533,
    0.11111111098039547,
    -0.09090908465599805,
    0.07692289371983115,
    -0.06666316438845328,
    0.05877833832915572,
    -0.05223266725748491,
    0.04522036265826318,
    -0.033878724404778245,
    0.015582364513692083,
)
# (asin(sqrt(z)) / sqrt(z) - 1) / z for sqrt(z) <= 1 / 2.
_ASIN = (
    0.1666666666666668,
    0.0749999999999039,
    0.04464285715763131,
    0.03038194345738474,
    0.022372195365844443,
    0.01735194201687897,
    0.013977093062554912,
    0.01142780267593453,
    0.01062615397697127,
    0.004262550908840985,
    0.020410031583781352,
    -0.019233197338172973,
    0.03156361927259154,
)
_TAN_PI_8 = 0.4142135623730951
_QUARTER = (1.5707963267948966, 6.123233995736766e-17)
_EIGHTH = (0.7853981633974483, 3.061616997868383e-17)
_HALF = (3.141592653589793, 1.2246467991473532e-16)


def atan(x: Lanes) -> Lanes:
    """Below 1 ulp in float32, below 3 ulp in float64; a zero keeps its sign."""
    return in_float64(_atan, x)


def _atan(x: Lanes) -> Lanes:
    size = x.absolute()
    middle, far = size > _TAN_PI_8, size > 1.0 / _TAN_PI_8
    # (size - 1) / (size + 1) or -1 / size, and how far that turns.
    numerator = far.choose(-1.0, middle.choose(size - 1.0, size))
    denominator = far.choose(size, middle.choose(size + 1.0, 1.0))
    t = numerator / denominator
    turned = [
        far.choose(size.constant(quarter), middle.choose(size.constant(eighth), 0.0))
        for quarter, eighth in zip(_QUARTER, _EIGHTH, strict=True)
    ]
    return (turned[0] + (turned[1] + _atan_near(t))).with_sign_of(x)


def _atan_near(t: Lanes) -> Lanes:
    z = t * t
    return (z * horner(z, _ATAN)).fma(t, t)


def atan2(y: Lanes, x: Lanes) -> Lanes:
    """The angle of the point (x, y), -pi to pi, with zeros and infinities as C has them.

    Below 1 ulp in float32, below 3 ulp in float64.
    """
    return in_float64(_atan2, y, x)


def _atan2(y: Lanes, x: Lanes) -> Lanes:
    high, wide = y.absolute(), x.absolute()
    steep = high > wide
    ratio = steep.choose(wide, high) / steep.choose(high, wide)
    ratio = high.equals(wide).choose(1.0, ratio)
    ratio = high.equals(0.0).choose(0.0, ratio)
    angle = _atan(ratio)
    angle = steep.choose(_QUARTER[0] - (angle - _QUARTER[1]), angle)
    left = x.as_integers() < 0
    angle = left.choose(_HALF[0] - (angle - _HALF[1]), angle)
    angle = (y.is_nan() | x.is_nan()).choose(y + x, angle)
    return angle.with_sign_of(y)


def asin(x: Lanes) -> Lanes:
    """Below 1 ulp in float32, below 3 ulp in float64; NaN beyond 1; a zero keeps its sign."""
    return in_float64(_asin, x)


def _asin(x: Lanes) -> Lanes:
    size = x.absolute()
    outer, arc = _half_arc(size)
    from_end = _QUARTER[0] - (arc + arc - _QUARTER[1])
    return outer.choose(from_end, arc).with_sign_of(x)


def acos(x: Lanes) -> Lanes:
    """Below 1 ulp in float32, below 2 ulp in float64; NaN beyond 1."""
    return in_float64(_acos, x)


def _acos(x: Lanes) -> Lanes:
    outer, arc = _half_arc(x.absolute())
    doubled = arc + arc
    right = (x < 0.0).choose(_HALF[0] - (doubled - _HALF[1]), doubled)
    middle = _QUARTER[0] - (arc.with_sign_of(x) - _QUARTER[1])
    return outer.choose(right, middle)


def _half_arc(size: Lanes) -> tuple[Lanes, Lanes]:
    """Whether sizes are 1/2 or more; asin of the size, there half of acos of it."""
    outer = size >= 0.5
    z = outer.choose((1.0 - size) * 0.5, size * size)
    root = outer.choose(z.square_root(), size)
    return outer, (z * horner(z, _ASIN)).fma(root, root)
