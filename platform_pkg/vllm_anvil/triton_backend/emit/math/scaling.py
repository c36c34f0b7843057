# SPDX-License-Identifier: Apache-2.0
"""Rounding to integers, exponents, and neighbours: what works on a float's parts, exactly."""

from __future__ import annotations

from llvmlite import ir

from vllm_anvil.triton_backend.emit.math.formats import (
    F64,
    INFINITY,
    biased_exponent,
    format_of,
    power_of_two,
)
from vllm_anvil.triton_backend.emit.types import with_scalar
from vllm_anvil.triton_backend.emit.vectors import Lanes

# The greatest number below 1/2: with 1/2 itself, the number before it would round to 1.
_BELOW_HALF = {32: 0.49999997, 64: 0.49999999999999994}
_GREATEST = (1 << 31) - 1


def round_half_away(x: Lanes) -> Lanes:
    """The nearest integer; of two, the one further from zero. A zero keeps its sign."""
    below_half = x.constant(_BELOW_HALF[x.bits]).with_sign_of(x)
    return (x + below_half).call("trunc")


def exponent(x: Lanes) -> Lanes:
    """The greatest integer n with 2**n <= |x|, as 32 bits, as C's ilogb.

    The least integer for zero and NaN, the greatest for infinity.
    """
    size = x.absolute()
    biased = biased_exponent(size)
    result = biased - format_of(x).bias
    if x.bits == 64:
        result = result.cast("trunc", with_scalar(x.type, ir.IntType(32)))
    result = size.equals(INFINITY).choose(_GREATEST, result)
    return (size > 0.0).choose(result, -_GREATEST - 1)


def scaled_by_power(x: Lanes, n: Lanes) -> Lanes:
    """x * 2**n for integers of 32 bits, rounded once, as C's ldexp."""
    if x.bits == 32:
        # Far enough for any float32 to become zero or infinite, and exact in float64.
        bounded = _bounded(n, 400).cast("sext", x.integers(64))
        return (x.widened() * power_of_two(bounded, F64)).narrowed()
    # The last factor alone may round: those before it leave a normal number normal, as they take
    # 52 bits less than there are exponents below 1.
    n = _bounded(n, 2200).cast("sext", x.integers(64))
    for _ in range(2):
        step = (n > 1023).choose(n.constant(1023), (n < -1022).choose(n.constant(-969), 0))
        x, n = x * power_of_two(step, F64), n - step
    n = (n > 1023).choose(1023, n)
    n = (n < -1022).choose(-1022, n)
    return x * power_of_two(n, F64)


def _bounded(n: Lanes, limit: int) -> Lanes:
    n = (n > limit).choose(limit, n)
    return (n < -limit).choose(-limit, n)


def next_after(x: Lanes, y: Lanes) -> Lanes:
    """The float next to x in the direction of y, as C's nextafter."""
    bits = x.as_integers()
    # Away from zero the bits count up, whatever the sign.
    away = (x < y) ^ (x < 0.0)
    stepped = (bits + away.choose(bits.constant(1), -1)).as_floats()
    smallest = bits.constant(1).as_floats().with_sign_of(y)
    result = x.equals(0.0).choose(smallest, stepped)
    result = x.equals(y).choose(y, result)
    return (x.is_nan() | y.is_nan()).choose(x + y, result)
