# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of integers, defined for all operands: lanes that are masked off hold anything.

A divisor of zero counts as one, and the least number divided by -1 is itself (remainder 0). A shift
by the width or more gives 0, or the sign everywhere where that is shifted in. All else wraps.
"""

from __future__ import annotations

from collections.abc import Callable

from vllm_anvil.triton_backend.emit.types import lanes_of
from vllm_anvil.triton_backend.emit.vectors import Lanes
from vllm_anvil.triton_backend.lower.elementwise.call import Call, Emitter, Handler, constant_lanes
from vllm_anvil.triton_backend.ttir.model import Operation, ScalarType, element_of


def _plain(name: str) -> Emitter:
    """The builder's operation of that name."""

    def emit(call: Call) -> Lanes:
        return Lanes(call.builder, getattr(call.builder, name)(*call.values))

    return emit


def _shift(name: str, fills_with_sign: bool = False) -> Emitter:
    def emit(call: Call) -> Lanes:
        x, amount = call.operands
        shifted = _plain(name)
        known = constant_lanes(call.operation.operands[1])
        if known is not None and all(0 <= lane < x.bits for lane in known):
            return _single(shifted(call))
        inside = Lanes(
            call.builder,
            call.builder.icmp_unsigned("<", amount.value, amount.constant(x.bits).value),
        )
        if fills_with_sign:
            return x >> inside.choose(amount, x.bits - 1)
        # The shift itself is undefined outside, and `choose` does not look at it there.
        return inside.choose(_single(shifted(call)), 0)

    return emit


def _single(result: Lanes | tuple[Lanes, ...]) -> Lanes:
    assert isinstance(result, Lanes)
    return result


def _defined_divisor(call: Call, signed: bool) -> tuple[Lanes, Lanes, bool]:
    """The dividend, a divisor that never traps, and whether the divisor is a constant."""
    dividend, divisor = call.operands
    known = constant_lanes(call.operation.operands[1])
    if known is not None and not {0, -1} & set(known):
        return dividend, divisor, True
    bad = divisor.equals(0)
    if signed:
        bad = bad | (dividend.equals(-1 << (dividend.bits - 1)) & divisor.equals(-1))
    return dividend, bad.choose(1, divisor), False


def _quotient(call: Call, signed: bool) -> tuple[Lanes, Lanes, Lanes]:
    """The quotient rounded toward zero, the remainder and the divisor it holds for."""
    dividend, divisor, is_constant = _defined_divisor(call, signed)
    bits, name = dividend.bits, "sdiv" if signed else "udiv"
    if is_constant or lanes_of(dividend.type) is None or bits > 32 or bits == 1:
        quotient = Lanes(call.builder, getattr(call.builder, name)(dividend.value, divisor.value))
    else:
        # No processor divides vectors of integers. A float with twice their bits rounds the
        # quotient by less than its distance from the next integer.
        to_float, to_integer = ("sitofp", "fptosi") if signed else ("uitofp", "fptoui")
        kind = dividend.floats(64 if bits == 32 else 32)
        exact = dividend.cast(to_float, kind) / divisor.cast(to_float, kind)
        quotient = exact.cast(to_integer, dividend.type)
    return quotient, dividend - quotient * divisor, divisor


def _division(signed: bool, result: Callable[[Lanes, Lanes, Lanes], Lanes]) -> Emitter:
    return lambda call: result(*_quotient(call, signed))


def _truncated(quotient: Lanes, remainder: Lanes, divisor: Lanes) -> Lanes:
    return quotient


def _remainder(quotient: Lanes, remainder: Lanes, divisor: Lanes) -> Lanes:
    return remainder


def _floor(quotient: Lanes, remainder: Lanes, divisor: Lanes) -> Lanes:
    below = remainder.differs(0) & ((remainder ^ divisor) < 0)
    return quotient - below.cast("zext", quotient.type)


def _ceiling(quotient: Lanes, remainder: Lanes, divisor: Lanes) -> Lanes:
    above = remainder.differs(0) & ((remainder ^ divisor) >= 0)
    return quotient + above.cast("zext", quotient.type)


def _unsigned_ceiling(quotient: Lanes, remainder: Lanes, divisor: Lanes) -> Lanes:
    return quotient + remainder.differs(0).cast("zext", quotient.type)


def _extreme(intrinsic: str, of_booleans: str) -> Emitter:
    """A minimum or maximum; of booleans it is `and` or `or`."""

    def emit(call: Call) -> Lanes:
        x, y = call.operands
        return _single(_plain(of_booleans)(call)) if x.bits == 1 else x.call(intrinsic, y)

    return emit


def high_product(x: Lanes, y: Lanes, signed: bool) -> Lanes:
    """The upper half of the product of twice the width."""
    if x.bits < 64 or lanes_of(x.type) is None:
        extend = "sext" if signed else "zext"
        wide = x.integers(2 * x.bits)
        product = x.cast(extend, wide) * y.cast(extend, wide)
        return product.unsigned_shift_right(x.bits).cast("trunc", x.type)
    # Vectors multiply 32 bits by 32.
    low_mask = 0xFFFFFFFF
    x_low, x_high = x & low_mask, x.unsigned_shift_right(32)
    y_low, y_high = y & low_mask, y.unsigned_shift_right(32)
    middle = x_high * y_low + (x_low * y_low).unsigned_shift_right(32)
    other = x_low * y_high + (middle & low_mask)
    high = x_high * y_high + middle.unsigned_shift_right(32) + other.unsigned_shift_right(32)
    if signed:
        high = high - ((x >> 63) & y) - ((y >> 63) & x)
    return high


def upper_half(signed: bool) -> Emitter:
    """`high_product` of the operands."""

    def emit(call: Call) -> Lanes:
        x, y = call.operands
        return high_product(x, y, signed)

    return emit


def _extended_product(signed: bool) -> Emitter:
    def emit(call: Call) -> tuple[Lanes, ...]:
        x, y = call.operands
        return x * y, high_product(x, y, signed)

    return emit


def _unsigned_below(x: Lanes, y: Lanes) -> Lanes:
    return Lanes(x.builder, x.builder.icmp_unsigned("<", x.value, y.value))


def _sum_and_carry(call: Call) -> tuple[Lanes, ...]:
    x, y = call.operands
    total = x + y
    return total, _unsigned_below(total, x)


def _difference_and_borrow(call: Call) -> tuple[Lanes, ...]:
    x, y = call.operands
    return x - y, _unsigned_below(x, y)


def _division_cost(operation: Operation) -> int:
    """64 bits are divided one lane after the other."""
    element = element_of(operation.results[0].type)
    return 8 if isinstance(element, ScalarType) and element.bits < 64 else 40


HANDLERS = {
    "arith.addi": Handler(_plain("add"), 0),
    "arith.subi": Handler(_plain("sub"), 0),
    "arith.muli": Handler(_plain("mul"), 1),
    "arith.andi": Handler(_plain("and_"), 0),
    "arith.ori": Handler(_plain("or_"), 0),
    "arith.xori": Handler(_plain("xor"), 0),
    "arith.shli": Handler(_shift("shl"), 0),
    "arith.shrui": Handler(_shift("lshr"), 0),
    "arith.shrsi": Handler(_shift("ashr", fills_with_sign=True), 0),
    "arith.divsi": Handler(_division(True, _truncated), _division_cost),
    "arith.divui": Handler(_division(False, _truncated), _division_cost),
    "arith.remsi": Handler(_division(True, _remainder), _division_cost),
    "arith.remui": Handler(_division(False, _remainder), _division_cost),
    "arith.floordivsi": Handler(_division(True, _floor), _division_cost),
    "arith.ceildivsi": Handler(_division(True, _ceiling), _division_cost),
    "arith.ceildivui": Handler(_division(False, _unsigned_ceiling), _division_cost),
    "arith.minsi": Handler(_extreme("smin", "or_"), 1),
    "arith.maxsi": Handler(_extreme("smax", "and_"), 1),
    "arith.minui": Handler(_extreme("umin", "and_"), 1),
    "arith.maxui": Handler(_extreme("umax", "or_"), 1),
    "arith.mulsi_extended": Handler(_extended_product(True), 4),
    "arith.mului_extended": Handler(_extended_product(False), 4),
    "arith.addui_extended": Handler(_sum_and_carry, 1),
    "arith.subui_extended": Handler(_difference_and_borrow, 1),
    "tt.mulhiui": Handler(upper_half(signed=False), 4),
    "math.absi": Handler(lambda call: call.operands[0].absolute(), 1),
    "math.ctpop": Handler(lambda call: call.operands[0].call("ctpop"), 2),
    "math.ctlz": Handler(lambda call: call.operands[0].call_with_flag("ctlz"), 2),
    "math.cttz": Handler(lambda call: call.operands[0].call_with_flag("cttz"), 2),
}
