# SPDX-License-Identifier: Apache-2.0
"""The formats that functions are computed in, float32 and float64, and work on their bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vllm_anvil.triton_backend.emit.vectors import Lanes

INFINITY = float("inf")
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """An IEEE 754 binary format."""

    bits: int
    mantissa_bits: int
    bias: int
    # The bits of the float next to the square root of 1/2.
    square_root_half: int

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def rounding_magic(self) -> float:
        """Added to a number below a quarter of it, leaves that as an integer in the low bits."""
        return 1.5 * 2.0**self.mantissa_bits

    @property
    def mantissa_mask(self) -> int:
        return (1 << self.mantissa_bits) - 1


F32 = FloatFormat(32, 23, 127, 0x3F3504F3)
F64 = FloatFormat(64, 52, 1023, 0x3FE6A09E667F3BCD)
_FORMATS = {32: F32, 64: F64}


def format_of(x: Lanes) -> FloatFormat:
    return _FORMATS[x.bits]


def clamped(x: Lanes, low: float, high: float) -> Lanes:
    """`x` within [low, high]; NaN stays NaN. Two instructions on x86."""
    x = (x < low).choose(low, x)
    return (x > high).choose(high, x)


def power_of_two(exponent: Lanes, format_: FloatFormat) -> Lanes:
    """2**exponent for integers of the format's width, 1 - bias to bias; 0 for -bias."""
    return ((exponent + format_.bias) << format_.mantissa_bits).as_floats()


def biased_exponent(x: Lanes) -> Lanes:
    """The exponent + bias of positive finite floats, for denormals too, where it is below 1."""
    format_ = format_of(x)
    small = x < format_.smallest_normal
    scaled = small.choose(x * 2.0**format_.mantissa_bits, x)
    field = scaled.as_integers().unsigned_shift_right(format_.mantissa_bits)
    return field - small.choose(field.constant(format_.mantissa_bits), 0)


def in_float64(function: Callable[..., Lanes], *arguments: Lanes) -> Lanes:
    """`function` computed in float64 and rounded to the arguments' format."""
    if arguments[0].bits == 64:
        return function(*arguments)
    return function(*(argument.widened() for argument in arguments)).narrowed()


def two_sum(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """`a + b` rounded, and what the rounding left off, exactly."""
    total = a + b
    from_b = total - a
    return total, (a - (total - from_b)) + (b - from_b)


def two_product(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """`a * b` rounded, and what the rounding left off."""
    product = a * b
    return product, a.fma(b, -product)
