# SPDX-License-Identifier: Apache-2.0
"""log, log2, log10, log1p and the inverse hyperbolic functions.

A logarithm is that of 2**e * (1 + f) with 1 + f between the square roots of 1/2 and 2, where
log(1 + f) = f - c and c is small against f.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_anvil.triton_backend.emit.math.formats import (
    INFINITY,
    NAN,
    FloatFormat,
    format_of,
    in_float64,
    power_of_two,
    two_sum,
)
from vllm_anvil.triton_backend.emit.vectors import Lanes, horner

# (log(1 + f) - f + f**2 / 2) / f**3 between the square roots of 1/2 and 2.
_LOG_F32 = (
    0.3333331,
    -0.24999987,
    0.20002225,
    -0.16669254,
    0.14218675,
    -0.12384316,
    0.11872841,
    -0.117899194,
    0.06915763,
)
# (2 * atanh(sqrt(z)) / sqrt(z) - 2) / z for z <= 0.0295.
_ATANH_F64 = (
    0.6666666666666666,
    0.40000000000003644,
    0.28571428569768015,
    0.2222222255955095,
    0.18181781744677272,
    0.15386854986853105,
    0.13254900882040166,
    0.13211761303004305,
)


@dataclass(frozen=True, slots=True)
class _Base:
    """1 / ln(base) and log_base(2), each as two floats: a rounded one and the rest."""

    per_unit: tuple[float, float]
    per_doubling: tuple[float, float]


_NATURAL = {
    32: _Base((1.0, 0.0), (0.6931471824645996, -1.9046542121259336e-09)),
    64: _Base((1.0, 0.0), (0.6931471805599453, 2.3190468138462996e-17)),
}
_BINARY = {
    32: _Base((1.4426950216293335, 1.925963033500011e-08), (1.0, 0.0)),
    64: _Base((1.4426950408889634, 2.0355273740931033e-17), (1.0, 0.0)),
}
_DECIMAL = {
    32: _Base(
        (0.4342944920063019, -1.0103049952192578e-08),
        (0.3010300099849701, -1.432098883924482e-08),
    ),
    64: _Base(
        (0.4342944819032518, 1.098319650216765e-17),
        (0.3010299956639812, -2.8037281277851704e-18),
    ),
}
_LN_2 = 0.6931471805599453


def log(x: Lanes) -> Lanes:
    """The natural logarithm. Below 1 ulp."""
    return _logarithm(x, _NATURAL[x.bits])


def log2(x: Lanes) -> Lanes:
    """Below 2 ulp, exact for powers of two."""
    return _logarithm(x, _BINARY[x.bits])


def log10(x: Lanes) -> Lanes:
    """Below 2 ulp."""
    return _logarithm(x, _DECIMAL[x.bits])


def log1p(x: Lanes) -> Lanes:
    """log(1 + x). Below 2 ulp; a zero keeps its sign."""
    format_ = format_of(x)
    total, rest = two_sum(x.constant(1.0), x)
    e, f = _mantissa(total.as_integers(), format_)
    # What the sum left off, scaled as the total was; for e = 0 this restores x itself. Where the
    # scale would be denormal it is 0, and nothing is lost.
    scale = (e > format_.bias).choose(-format_.bias, -e)
    f = rest.fma(power_of_two(scale, format_), f)
    result = _combined(_as_floats(e, x), f, _NATURAL[x.bits])
    return x.equals(0.0).choose(x, _with_limits(total, result))


def asinh(x: Lanes) -> Lanes:
    """Below 1 ulp in float32, below 3 ulp in float64; a zero keeps its sign."""
    return in_float64(_asinh, x)


def _asinh(x: Lanes) -> Lanes:
    size = x.absolute()
    near = (size > 1e9).choose(1.0, size)
    square = near * near
    near = log1p(near + square / (1.0 + (square + 1.0).square_root()))
    return (size > 1e9).choose(log(size) + _LN_2, near).with_sign_of(x)


def acosh(x: Lanes) -> Lanes:
    """Below 1 ulp in float32, below 3 ulp in float64; NaN below 1."""
    return in_float64(_acosh, x)


def _acosh(x: Lanes) -> Lanes:
    over = (x > 1e9).choose(1.0, x) - 1.0
    near = log1p(over + over.fma(over, over + over).square_root())
    result = (x > 1e9).choose(log(x) + _LN_2, near)
    return (x < 1.0).choose(NAN, result)


def atanh(x: Lanes) -> Lanes:
    """Below 1 ulp in float32, below 4 ulp in float64; NaN beyond 1; a zero keeps its sign."""
    return in_float64(_atanh, x)


def _atanh(x: Lanes) -> Lanes:
    size = x.absolute()
    return (0.5 * log1p((size + size) / (1.0 - size))).with_sign_of(x)


def _logarithm(x: Lanes, base: _Base) -> Lanes:
    e, f = decomposed(x)
    return _with_limits(x, _combined(_as_floats(e, x), f, base))


def decomposed(x: Lanes) -> tuple[Lanes, Lanes]:
    """Integers e and floats f with x = 2**e * (1 + f), for finite x above 0, denormals too."""
    format_ = format_of(x)
    small = x < format_.smallest_normal
    scaled = small.choose(x * 2.0**format_.mantissa_bits, x)
    e, f = _mantissa(scaled.as_integers(), format_)
    return e - small.choose(e.constant(format_.mantissa_bits), 0), f


def _mantissa(bits: Lanes, format_: FloatFormat) -> tuple[Lanes, Lanes]:
    bits = bits - format_.square_root_half
    mantissa = (bits & format_.mantissa_mask) + format_.square_root_half
    return bits >> format_.mantissa_bits, mantissa.as_floats() - 1.0


def _as_floats(e: Lanes, like: Lanes) -> Lanes:
    if like.bits == 64:
        # From 32 bits, because the baseline converts no vector of 64.
        e = e.cast("trunc", e.integers(32))
    return e.cast("sitofp", like.type)


def _combined(e: Lanes, f: Lanes, base: _Base) -> Lanes:
    c = _less_than_f(f)
    (high, low), (doubling_high, doubling_low) = base.per_unit, base.per_doubling
    if base.per_doubling == (1.0, 0.0):
        rest = f.fma(low, c * -high)
    elif base.per_unit == (1.0, 0.0):
        rest = e.fma(doubling_low, -c)
    else:
        rest = f.fma(low, e.fma(doubling_low, c * -high))
    mantissa = f + rest if high == 1.0 else f.fma(high, rest)
    return e + mantissa if doubling_high == 1.0 else e.fma(doubling_high, mantissa)


def _less_than_f(f: Lanes) -> Lanes:
    """c with log(1 + f) = f - c."""
    if f.bits == 32:
        return f * f * horner(f, _LOG_F32).fma(-f, 0.5)
    s = f / (f + 2.0)
    z = s * s
    return s * (f - z * horner(z, _ATANH_F64))


def _with_limits(x: Lanes, result: Lanes) -> Lanes:
    """A logarithm at zero, infinity and NaN, and below zero."""
    result = (x < INFINITY).choose(result, x)
    outside = x.equals(0.0).choose(x.constant(-INFINITY), NAN)
    return (x <= 0.0).choose(outside, result)
