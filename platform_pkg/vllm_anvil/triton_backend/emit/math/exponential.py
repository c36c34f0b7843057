# SPDX-License-Identifier: Apache-2.0
"""exp, exp2, exp10, expm1 and the hyperbolic functions.

An exponential is 2**n * e**r with |r| <= ln(2) / 2. The power of two is applied as two factors, so
that results below the smallest normal number are rounded once and those too large become infinite.
"""

from __future__ import annotations

from vllm_anvil.triton_backend.emit.math.formats import (
    clamped,
    format_of,
    in_float64,
)
from vllm_anvil.triton_backend.emit.vectors import Lanes, horner

# (e**r - 1 - r) / r**2 for |r| <= 0.348.
_EXP = {
    32: (0.5, 0.16666546, 0.041666288, 0.008366368, 0.0013946448),
    64: (
        0.5,
        0.16666666666666674,
        0.04166666666666669,
        0.008333333333322406,
        0.0013888888888869168,
        0.0001984126988460295,
        2.4801587356747798e-05,
        2.7557245382577284e-06,
        2.7557245493860063e-07,
        2.5108734428427913e-08,
        2.0923729525199305e-09,
    ),
}
# (2**r - 1) / r for |r| <= 0.5025.
_EXP2 = {
    32: (0.6931472, 0.2402265, 0.055503312, 0.009618005, 0.001339941, 0.00015476157),
    64: (
        0.6931471805599453,
        0.24022650695910072,
        0.05550410866482168,
        0.009618129107628494,
        0.0013333558146393276,
        0.00015403530393343052,
        1.525273385418691e-05,
        1.3215486831952598e-06,
        1.0178051860287463e-07,
        7.054888532306337e-09,
        4.456599509502053e-10,
        2.57415512096142e-11,
    ),
}
# (tanh(sqrt(z)) / sqrt(z) - 1) / z for z <= 0.36.
_TANH = {
    32: (-0.3333333, 0.13333279, -0.05395614, 0.021753643, -0.008313462, 0.002273148),
    64: (
        -0.3333333333333333,
        0.13333333333333333,
        -0.05396825396825287,
        0.02186948853609203,
        -0.008863235527911137,
        0.003592127997689106,
        -0.0014558338824016445,
        0.0005900229021872705,
        -0.00023910014058970826,
        9.678270978265836e-05,
        -3.8843160426392494e-05,
        1.491066404854189e-05,
        -4.849508039788484e-06,
        9.519873896576372e-07,
    ),
}
_LOG2_E = {32: 1.4426950216293335, 64: 1.4426950408889634}
# The first has so few bits that its product with any n in question is exact.
_LN_2 = {
    32: (0.693145751953125, 1.428606765330187e-06),
    64: (0.6931471805601177, -1.7239444525614835e-13),
}
_LOG2_10 = 3.321928094887362
_LOG10_2 = (0.3010299956640665, -8.532344317057107e-14)
_LN_10 = 2.302585092994046
# Beyond these e**x rounds to zero and to infinity, half of it too; e**x - 1 to -1 and infinity.
_EXP_RANGE = {32: (-104.0, 90.0), 64: (-746.0, 711.0)}
_EXPM1_RANGE = {32: (-40.0, 89.0), 64: (-40.0, 710.0)}
_EXP2_RANGE = {32: (-151.0, 129.0), 64: (-1076.0, 1025.0)}


def exp(x: Lanes, halvings: int = 0) -> Lanes:
    """e**x * 2**-halvings. Below 1 ulp; 17 instructions in float32."""
    x = clamped(x, *_EXP_RANGE[x.bits])
    n, biased = _rounded(x, _LOG2_E[x.bits])
    return _scaled(_exp_near_zero(_reduced(x, n)), biased, halvings)


def exp2(x: Lanes) -> Lanes:
    """2**x. Below 1 ulp, exact for integers."""
    x = clamped(x, *_EXP2_RANGE[x.bits])
    n, biased = _rounded(x, 1.0)
    return _scaled(horner(x - n, (1.0, *_EXP2[x.bits])), biased)


def exp10(x: Lanes) -> Lanes:
    """10**x. Below 1 ulp."""
    return in_float64(_exp10, x)


def _exp10(x: Lanes) -> Lanes:
    x = clamped(x, -325.0, 309.0)
    n, biased = _rounded(x, _LOG2_10)
    high, low = _LOG10_2
    r = (-n).fma(low, (-n).fma(high, x)) * _LN_10
    return _scaled(_exp_near_zero(r), biased)


def exp_of_sum(high: Lanes, low: Lanes) -> Lanes:
    """e**(high + low) for float64 and |low| far below 1: what a single exponent has no bits for."""
    low = (high > 800.0).choose(0.0, (high < -800.0).choose(0.0, low))
    high = clamped(high, *_EXP_RANGE[64])
    n, biased = _rounded(high, _LOG2_E[64])
    factor = _exp_near_zero(_reduced(high, n))
    return _scaled(factor.fma(low, factor), biased)


def expm1(x: Lanes) -> Lanes:
    """e**x - 1. Below 2 ulp; a zero keeps its sign."""
    bounded = clamped(x, *_EXPM1_RANGE[x.bits])
    n, biased = _rounded(bounded, _LOG2_E[x.bits])
    r = _reduced(bounded, n)
    near_zero = (r * r).fma(horner(r, _EXP[x.bits]), r)
    # Half of the power, which is finite for every n.
    half_power = _power(x, biased - 1)
    result = half_power.fma(near_zero, half_power - 0.5) * 2.0
    return x.equals(0.0).choose(x, result)


def tanh(x: Lanes) -> Lanes:
    """Below 2 ulp; a zero keeps its sign."""
    size = x.absolute()
    square = x * x
    near_zero = (square * horner(square, _TANH[x.bits])).fma(x, x)
    bounded = (size > 20.0).choose(20.0, size)
    doubled = bounded + bounded
    n, biased = _rounded(doubled, _LOG2_E[x.bits])
    far = 1.0 - 2.0 / _exp_near_zero(_reduced(doubled, n)).fma(_power(x, biased), 1.0)
    return (size < 0.55).choose(near_zero, far).with_sign_of(x)


def sinh(x: Lanes) -> Lanes:
    """Below 1 ulp in float32, below 3 ulp in float64; a zero keeps its sign."""
    return in_float64(_sinh, x)


def _sinh(x: Lanes) -> Lanes:
    size = x.absolute()
    less_one = expm1((size > 22.0).choose(22.0, size))
    near_zero = 0.5 * (less_one + less_one / (less_one + 1.0))
    return (size > 22.0).choose(exp(size, halvings=1), near_zero).with_sign_of(x)


def cosh(x: Lanes) -> Lanes:
    """Below 1 ulp in float32, below 2 ulp in float64."""
    return in_float64(_cosh, x)


def _cosh(x: Lanes) -> Lanes:
    half_exp = exp(x.absolute(), halvings=1)
    return half_exp + 0.25 / half_exp


def _rounded(x: Lanes, factor: float) -> tuple[Lanes, Lanes]:
    """`x * factor` rounded to an integer n: n as a float, and n + 2 * bias in the low bits.

    The integers' bits from the format's exponent width + 1 on are those of the magic number.
    """
    format_ = format_of(x)
    magic = format_.rounding_magic + 2 * format_.bias
    shifted = x.fma(factor, magic)
    return shifted - magic, shifted.as_integers()


def _reduced(x: Lanes, n: Lanes) -> Lanes:
    high, low = _LN_2[x.bits]
    return (-n).fma(low, (-n).fma(high, x))


def _exp_near_zero(r: Lanes) -> Lanes:
    return horner(r, (1.0, 1.0, *_EXP[r.bits]))


def _power(like: Lanes, biased: Lanes) -> Lanes:
    """2**n, which must be a normal number, for the integers n + 2 * bias."""
    format_ = format_of(like)
    return ((biased - format_.bias) << format_.mantissa_bits).as_floats()


def _scaled(factor: Lanes, biased: Lanes, halvings: int = 0) -> Lanes:
    """`factor` times 2**n for the integers n + 2 * bias."""
    if halvings:
        biased = biased - halvings
    shift = format_of(factor).mantissa_bits
    half = biased.unsigned_shift_right(1)
    return factor * (half << shift).as_floats() * ((biased - half) << shift).as_floats()
