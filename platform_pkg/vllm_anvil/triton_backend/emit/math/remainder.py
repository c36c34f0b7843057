# SPDX-License-Identifier: Apache-2.0
"""The remainder of a division of floats, exact."""

from __future__ import annotations

from vllm_anvil.triton_backend.emit.math.formats import (
    F64,
    INFINITY,
    NAN,
    biased_exponent,
    in_float64,
    power_of_two,
)
from vllm_anvil.triton_backend.emit.vectors import Lanes, outlined

# How many bits of a quotient one step takes off: it must be exact in float64.
_STEP = 52


def truncated_remainder(x: Lanes, y: Lanes) -> Lanes:
    """`x - trunc(x / y) * y` exactly, with the sign of x, as C's fmod: also where x / y is huge.

    NaN for a divisor of zero or an infinite dividend; x itself for an infinite divisor.
    """
    return in_float64(lambda a, b: outlined("remainder", _remainder, [a.type], a, b)[0], x, y)


def _remainder(x: Lanes, y: Lanes) -> tuple[Lanes]:
    size, divisor = x.absolute(), y.absolute()
    whole = divisor.equals(INFINITY)
    valid = (size < INFINITY) & (divisor > 0.0)
    # Lanes that need no step take one.
    divided = valid & ~whole
    remaining, divisor = divided.choose(size, 0.0), divided.choose(divisor, 1.0)

    builder = x.builder
    before = builder.block
    loop = builder.append_basic_block("reduce")
    done = builder.append_basic_block("reduced")
    builder.branch(loop)
    builder.position_at_end(loop)
    phi = builder.phi(x.type)
    phi.add_incoming(remaining.value, before)
    reduced = _step(Lanes(builder, phi), divisor)
    phi.add_incoming(reduced.value, builder.block)
    builder.cbranch((reduced >= divisor).any(), loop, done)
    builder.position_at_end(done)
    return (valid.choose(whole.choose(x, reduced.with_sign_of(x)), NAN),)


def _step(x: Lanes, divisor: Lanes) -> Lanes:
    """`x` less a multiple of the divisor, so that the quotient shrinks by `_STEP` bits or to 0."""
    excess = biased_exponent(x) - biased_exponent(divisor) - _STEP
    excess = (excess > 0).choose(excess, 0)
    # By two factors, since one may be beyond the exponents of float64.
    half = excess >> 1
    scaled = divisor * power_of_two(half, F64) * power_of_two(excess - half, F64)
    quotient = (x / scaled).call("trunc")
    left = (-quotient).fma(scaled, x)
    # A quotient rounded up across an integer was one too large.
    return (left < 0.0).choose(left + scaled, left)


def nearest_remainder(x: Lanes, y: Lanes) -> Lanes:
    """`x - n * y` exactly, n being the integer nearest to x / y (of two, the even one).

    NaN and infinities as in `truncated_remainder`.
    """
    return in_float64(_nearest_remainder, x, y)


def _nearest_remainder(x: Lanes, y: Lanes) -> Lanes:
    divisor = y.absolute()
    # Modulo twice the divisor, so that it is known which multiple is even.
    left = truncated_remainder(x, divisor + divisor).absolute()
    over = left > divisor - left
    once = left - divisor
    twice = over & (once >= divisor - once)
    left = twice.choose(once - divisor, over.choose(once, left))
    left = divisor.equals(INFINITY).choose(x.absolute(), left)
    left = (x.absolute() < INFINITY).choose(left, NAN)
    negative = x.as_integers() < 0
    return y.is_nan().choose(NAN, negative.choose(-left, left))
