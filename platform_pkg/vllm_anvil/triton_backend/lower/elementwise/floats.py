# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of floats.

float16 and bfloat16 are computed in float32 and rounded once, to nearest even.
Nothing is contracted, reassociated or approximated, whatever flags the operation carries.
"""

from __future__ import annotations

from collections.abc import Callable

from vllm_anvil.triton_backend.emit import math
from vllm_anvil.triton_backend.emit.floats import converted
from vllm_anvil.triton_backend.emit.math.formats import INFINITY
from vllm_anvil.triton_backend.emit.vectors import Lanes
from vllm_anvil.triton_backend.lower.elementwise.call import Call, Emitter, Handler
from vllm_anvil.triton_backend.ttir.model import ScalarType


def computed(function: Callable[..., Lanes]) -> Emitter:
    """`function` in float32 or float64, rounded to the type of the result."""
    return lambda call: call.computed(function)


def _intrinsic(name: str) -> Emitter:
    return computed(lambda x, *others: x.call(name, *others))


def _sign_mask(x: Lanes) -> int:
    return 1 << (x.bits - 1)


def _bits(x: Lanes) -> Lanes:
    return x.as_integers() if x.is_float else x


def _from_bits(bits: Lanes, like: Lanes) -> Lanes:
    return bits.as_floats() if like.is_float else bits


def _absolute(call: Call) -> Lanes:
    """By bits, so that no format is rounded or has its NaN changed."""
    (x,) = call.operands
    return _from_bits(_bits(x) & (_sign_mask(x) - 1), x)


def _negated(call: Call) -> Lanes:
    (x,) = call.operands
    return _from_bits(_bits(x) ^ _sign_mask(x), x)


def _copied_sign(call: Call) -> Lanes:
    x, sign = call.operands
    mask = _sign_mask(x)
    return _from_bits((_bits(x) & (mask - 1)) | (_bits(sign) & mask), x)


def _fused(call: Call) -> Lanes:
    element = call.float_result()
    x, y, z = call.computed_operands()
    if element.name in ("f32", "f64"):
        return x.fma(y, z)
    # Products of 16-bit floats are exact in float64; the sum isn't always, of bfloat16.
    product, addend = x.widened() * y.widened(), z.widened()
    return converted(_sum_to_odd(product, addend), ScalarType("f64"), element)


def _sum_to_odd(x: Lanes, y: Lanes) -> Lanes:
    """The sum with its last bit set where it is inexact: rounding it again rounds as if at once."""
    total = x + y
    rest = total - x
    lost = (x - (total - rest)) + (y - rest)
    bits = total.as_integers()
    # Truncated, an inexact sum is odd or becomes so. Of an infinite one the rest is NaN.
    beyond = (lost * total) < 0.0
    inexact = (lost.absolute() > 0.0).cast("zext", bits.type)
    return ((bits - beyond.cast("zext", bits.type)) | inexact).as_floats()


def _clamped(call: Call) -> Lanes:
    """minimum(maximum(x, low), high); without NaN propagation a NaN gives `low`."""
    propagates = str(call.operation.attributes.get("propagateNan", "none")).lower() != "none"
    if propagates:
        return call.computed(lambda x, low, high: x.call("maximum", low).call("minimum", high))
    return call.computed(lambda x, low, high: _lesser_number(_greater_number(x, low), high))


# Not LLVM's `maxnum` and `minnum`: of values that were float16 before, its optimiser makes those of
# float16, which x86 then calls libc's fmaxf and fminf for.


def _greater_number(x: Lanes, y: Lanes) -> Lanes:
    """Of a NaN and a number the number; of two zeros either."""
    return y.is_nan().choose(x, (x > y).choose(x, y))


def _lesser_number(x: Lanes, y: Lanes) -> Lanes:
    return y.is_nan().choose(x, (x < y).choose(x, y))


HANDLERS = {
    "arith.addf": Handler(computed(lambda x, y: x + y), 1),
    "arith.subf": Handler(computed(lambda x, y: x - y), 1),
    "arith.mulf": Handler(computed(lambda x, y: x * y), 1),
    "arith.divf": Handler(computed(lambda x, y: x / y), 4),
    "arith.remf": Handler(computed(math.truncated_remainder), 60),
    "arith.negf": Handler(_negated, 0),
    # NaN where an operand is; -0 is below +0.
    "arith.minimumf": Handler(_intrinsic("minimum"), 2),
    "arith.maximumf": Handler(_intrinsic("maximum"), 2),
    # The other operand where one is NaN; either zero of two.
    "arith.minnumf": Handler(computed(_lesser_number), 1),
    "arith.maxnumf": Handler(computed(_greater_number), 1),
    "tt.clampf": Handler(_clamped, 2),
    "tt.precise_divf": Handler(computed(lambda x, y: x / y), 4),
    "tt.approx_divf": Handler(computed(lambda x, y: x / y), 4),
    "tt.precise_sqrt": Handler(computed(Lanes.square_root), 4),
    "math.absf": Handler(_absolute, 0),
    "math.copysign": Handler(_copied_sign, 1),
    "math.fma": Handler(_fused, 1),
    "math.sqrt": Handler(computed(Lanes.square_root), 4),
    "math.floor": Handler(_intrinsic("floor"), 1),
    "math.ceil": Handler(_intrinsic("ceil"), 1),
    "math.trunc": Handler(_intrinsic("trunc"), 1),
    "math.roundeven": Handler(_intrinsic("roundeven"), 1),
    "math.round": Handler(computed(math.round_half_away), 3),
    "math.isnan": Handler(computed(Lanes.is_nan), 1),
    "math.isinf": Handler(computed(lambda x: x.absolute().equals(INFINITY)), 1),
    "math.isfinite": Handler(computed(lambda x: x.absolute() < INFINITY), 1),
}
