# SPDX-License-Identifier: Apache-2.0
"""Powers and roots."""

from __future__ import annotations

from vllm_anvil.triton_backend.emit.math.exponential import exp2, exp_of_sum
from vllm_anvil.triton_backend.emit.math.formats import (
    INFINITY,
    NAN,
    in_float64,
    two_product,
    two_sum,
)
from vllm_anvil.triton_backend.emit.math.logarithm import decomposed, log2
from vllm_anvil.triton_backend.emit.vectors import Lanes, horner, outlined

# ((2 * atanh(sqrt(z)) / sqrt(z) - 2) / z - 2 / 3) / z for z <= 0.0295.
_ATANH_TAIL = (
    0.4,
    0.28571428571429375,
    0.2222222222165133,
    0.18181818336322408,
    0.15384594872224233,
    0.1333480919529892,
    0.1170612507385906,
    0.1172425897646252,
)
_TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)
# The first has so few bits that its product with an exponent is exact.
_LN_2 = (0.6931471805601177, -1.7239444525614835e-13)


def reciprocal_square_root(x: Lanes) -> Lanes:
    """1 / sqrt(x), each step rounded: below 2 ulp."""
    return 1.0 / x.square_root()


def power(x: Lanes, y: Lanes) -> Lanes:
    """x**y as IEEE 754 and C have it. Below 1 ulp in float32, below 2 ulp in float64."""
    (result,) = outlined("power", _power, [x.type], x, y)
    return result


def _power(x: Lanes, y: Lanes) -> tuple[Lanes]:
    size = x.absolute()
    if x.bits == 32:
        result = exp2(y.widened() * log2(size.widened())).narrowed()
    else:
        result = _power_of_positive(size, y)
    # A base of zero or infinity, or an infinite exponent.
    unbounded = size.equals(0.0) | size.equals(INFINITY) | y.absolute().equals(INFINITY)
    grows = (size > 1.0) ^ (y < 0.0)
    limit = size.equals(1.0).choose(1.0, grows.choose(x.constant(INFINITY), 0.0))
    result = unbounded.choose(limit, result)

    # Of a float that is no integer, half of it is none either.
    integral = y.call("floor").equals(y)
    half = y * 0.5
    odd = integral & half.call("floor").differs(half)
    result = odd.choose(result.with_sign_of(x), result)
    negative = (x < 0.0) & size.differs(INFINITY)
    result = (negative & ~integral).choose(NAN, result)
    result = (x.is_nan() | y.is_nan()).choose(NAN, result)
    return ((x.equals(1.0) | y.equals(0.0)).choose(1.0, result),)


def _power_of_positive(x: Lanes, y: Lanes) -> Lanes:
    """The power with a logarithm of twice the precision, whose error the exponent multiplies."""
    log_high, log_low = _precise_log(x)
    high, low = two_product(y, log_high)
    return exp_of_sum(high, y.fma(log_low, low))


def _precise_log(x: Lanes) -> tuple[Lanes, Lanes]:
    """log(x) of positive finite float64 as a sum, to about 2**-65 of it."""
    e_integer, f = decomposed(x)
    e = e_integer.cast("trunc", e_integer.integers(32)).cast("sitofp", x.type)
    # s = f / (2 + f), then log(1 + f) = 2 * s + s**3 * (2 / 3 + tail).
    divisor, divisor_rest = two_sum(f.constant(2.0), f)
    s = f / divisor
    s_rest = ((-s).fma(divisor, f) - s * divisor_rest) / divisor
    z, z_rest = two_product(s, s)
    z_rest = (s + s).fma(s_rest, z_rest)
    series = z * horner(z, _ATANH_TAIL)
    factor, factor_rest = two_sum(f.constant(_TWO_THIRDS[0]), series)
    factor_rest = factor_rest + _TWO_THIRDS[1]
    cube, cube_rest = two_product(s, z)
    cube_rest = cube_rest + s.fma(z_rest, s_rest * z)
    term, term_rest = two_product(cube, factor)
    term_rest = term_rest + cube.fma(factor_rest, cube_rest * factor)

    total, rest = two_sum(e * _LN_2[0], s + s)
    total, term_left = two_sum(total, term)
    rest = rest + term_left + (term_rest + (s_rest + s_rest)) + e * _LN_2[1]
    high = total + rest
    return high, rest - (high - total)


def integer_power(x: Lanes, n: Lanes) -> Lanes:
    """x**n for floats and integers of 32 bits. As `power`."""
    return in_float64(lambda base: power(base, n.cast("sitofp", base.type)), x)


def cube_root(x: Lanes) -> Lanes:
    """Below 1 ulp; a zero keeps its sign."""
    return in_float64(_cube_root, x)


def _cube_root(x: Lanes) -> Lanes:
    size = x.absolute()
    near = exp2(log2(size) * (1.0 / 3.0))
    # One step of Newton's method, which makes up for the rounding of the exponent.
    refined = (size / (near * near) - near).fma(1.0 / 3.0, near)
    unchanged = size.equals(0.0) | ~(size < INFINITY)
    return unchanged.choose(size, refined).with_sign_of(x)


def hypotenuse(x: Lanes, y: Lanes) -> Lanes:
    """sqrt(x**2 + y**2) without overflow between. Below 1 ulp in float32, below 3 ulp in float64.

    Infinite where either is, even beside NaN.
    """
    a, b = x.absolute(), y.absolute()
    if x.bits == 32:
        wide_a, wide_b = a.widened(), b.widened()
        result = wide_a.fma(wide_a, wide_b * wide_b).square_root().narrowed()
    else:
        longer, shorter = (a < b).choose(b, a), (a < b).choose(a, b)
        ratio = longer.equals(0.0).choose(shorter, shorter / longer)
        result = longer * ratio.fma(ratio, 1.0).square_root()
    infinite = a.equals(INFINITY) | b.equals(INFINITY)
    return infinite.choose(INFINITY, result)
