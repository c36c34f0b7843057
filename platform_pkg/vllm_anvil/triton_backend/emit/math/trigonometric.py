# SPDX-License-Identifier: Apache-2.0
"""sin, cos, tan, and sin and cos of multiples of pi."""

from __future__ import annotations

from vllm_anvil.triton_backend.emit.math.formats import INFINITY, NAN, in_float64, two_product
from vllm_anvil.triton_backend.emit.math.reduction import quarter_turns
from vllm_anvil.triton_backend.emit.vectors import Lanes, horner

# (sin(sqrt(z)) / sqrt(z) - 1) / z and (cos(sqrt(z)) - 1 + z / 2) / z**2 for sqrt(z) <= pi / 4.
_SIN = {
    32: (-0.16666657, 0.008332291, -0.00019528792),
    64: (
        -0.16666666666666666,
        0.008333333333333328,
        -0.00019841269841259972,
        2.7557319216356718e-06,
        -2.5052105400633014e-08,
        1.6058421344046548e-10,
        -7.581104100383677e-13,
    ),
}
_COS = {
    32: (0.041666657, -0.0013887759, 2.4477118e-05),
    64: (
        0.041666666666666664,
        -0.0013888888888888885,
        2.4801587301580874e-05,
        -2.755731921915824e-07,
        2.0876755163878076e-09,
        -1.1470378013284682e-11,
        4.7416912337010935e-14,
    ),
}
_PI = (3.141592653589793, 1.2246467991473532e-16)


def sin(x: Lanes) -> Lanes:
    """Below 2 ulp for every x; a zero keeps its sign, infinity gives NaN."""
    return _sine(x, 0)


def cos(x: Lanes) -> Lanes:
    """Below 2 ulp for every x; infinity gives NaN."""
    return _sine(x, 1)


def tan(x: Lanes) -> Lanes:
    """Below 1 ulp in float32, below 4 ulp in float64, for every x."""
    return in_float64(_tan, x)


def sin_of_pi(x: Lanes) -> Lanes:
    """sin(pi * x). Below 2 ulp; exactly 0 for integers."""
    return _sine_of_pi(x, 0)


def cos_of_pi(x: Lanes) -> Lanes:
    """cos(pi * x). Below 2 ulp; exactly 0 half-way between integers."""
    return _sine_of_pi(x, 1)


def _sine(x: Lanes, quarters: int) -> Lanes:
    """sin(x + quarters * pi / 2)."""
    if x.bits == 32:
        r, _, q = quarter_turns(x.widened())
        result = _by_quarter(r.narrowed(), None, q.cast("trunc", q.integers(32)) + quarters)
    else:
        r, rest, q = quarter_turns(x)
        result = _by_quarter(r, rest, q + quarters)
    result = _finite_only(x, result)
    return result if quarters else x.equals(0.0).choose(x, result)


def _finite_only(x: Lanes, result: Lanes) -> Lanes:
    return (x.absolute() < INFINITY).choose(result, NAN)


def _tan(x: Lanes) -> Lanes:
    r, rest, q = quarter_turns(x)
    sine, cosine = _sine_near(r, rest), _cosine_near(r, rest)
    odd = (q & 1).differs(0)
    result = odd.choose(-cosine, sine) / odd.choose(sine, cosine)
    return x.equals(0.0).choose(x, _finite_only(x, result))


def _sine_of_pi(x: Lanes, quarters: int) -> Lanes:
    finite = x.absolute() < INFINITY
    x = finite.choose(x, 0.0)
    # Exactly: x within [-1, 1] by whole turns, then the quarters and what is left.
    x = (x * 0.5).call("rint").fma(-2.0, x)
    n = (x + x).call("rint")
    r = n.fma(-0.5, x)
    q = n.cast("fptosi", n.integers(32))
    q = q if x.bits == 32 else q.cast("sext", n.integers(64))
    if x.bits == 32:
        result = _by_quarter((r.widened() * _PI[0]).narrowed(), None, q + quarters)
    else:
        angle, rest = two_product(r, r.constant(_PI[0]))
        result = _by_quarter(angle, r.fma(_PI[1], rest), q + quarters)
    result = result.equals(0.0).choose(0.0, result)
    return finite.choose(result, NAN)


def _by_quarter(r: Lanes, rest: Lanes | None, q: Lanes) -> Lanes:
    """sin(r + rest + q * pi / 2)."""
    odd = (q & 1).differs(0)
    result = odd.choose(_cosine_near(r, rest), _sine_near(r, rest))
    sign = (q & 2) << (r.bits - 2)
    return (result.as_integers() ^ sign).as_floats()


def _sine_near(r: Lanes, rest: Lanes | None) -> Lanes:
    z = r * r
    series = r * z * horner(z, _SIN[r.bits])
    if rest is None:
        return r + series
    return r + (series + z.fma(-0.5, 1.0) * rest)


def _cosine_near(r: Lanes, rest: Lanes | None) -> Lanes:
    z = r * r
    if rest is None:
        return horner(z, _COS[r.bits]).fma(z, -0.5).fma(z, 1.0)
    high = z.fma(-0.5, 1.0)
    left = z.fma(-0.5, 1.0 - high)
    return high + (left + (z * z).fma(horner(z, _COS[r.bits]), -(r * rest)))
