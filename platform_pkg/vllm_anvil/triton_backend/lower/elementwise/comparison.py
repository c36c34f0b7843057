# SPDX-License-Identifier: Apache-2.0
"""Comparisons and the choice by them."""

from __future__ import annotations

from llvmlite import ir

from vllm_anvil.triton_backend.emit.types import splat, vector_of
from vllm_anvil.triton_backend.emit.vectors import Lanes
from vllm_anvil.triton_backend.lower.elementwise.call import Call, Handler

_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _predicate(call: Call) -> str:
    return str(call.operation.attributes["predicate"])


def _compare_integers(call: Call) -> Lanes:
    """`eq`, `ne`, or `s` or `u` before the comparison; pointers compare as addresses."""
    predicate = _predicate(call)
    sign = _SIGNS.get(predicate) or _SIGNS.get(predicate[1:])
    if sign is None or (predicate not in _SIGNS and predicate[0] not in "su"):
        call.refuse(f"the predicate {predicate} is unknown")
    compare = call.builder.icmp_unsigned if predicate[0] == "u" else call.builder.icmp_signed
    return Lanes(call.builder, compare(sign, *call.values))


def _compare_floats(call: Call) -> Lanes:
    """`o` before the comparison: false where an operand is NaN; `u`: true there."""
    predicate = _predicate(call)
    if predicate in ("true", "false"):
        type_ = vector_of(ir.IntType(1), call.lanes)
        return Lanes(call.builder, splat(type_, predicate == "true"))
    x, y = (operand.value for operand in call.computed_operands())
    if predicate in ("ord", "uno"):
        compare = call.builder.fcmp_ordered if predicate == "ord" else call.builder.fcmp_unordered
        return Lanes(call.builder, compare(predicate, x, y))
    sign = _SIGNS.get(predicate[1:])
    if sign is None or predicate[0] not in "ou":
        call.refuse(f"the predicate {predicate} is unknown")
    compare = call.builder.fcmp_ordered if predicate[0] == "o" else call.builder.fcmp_unordered
    return Lanes(call.builder, compare(sign, x, y))


def _select(call: Call) -> Lanes:
    """The condition may be one for all lanes."""
    condition, then, otherwise = call.operands
    if then.is_float and then.bits == 16:
        # As bits: vectors of float16 are not legal everywhere.
        return condition.choose(then.as_integers(), otherwise.as_integers()).as_floats()
    return condition.choose(then, otherwise)


HANDLERS = {
    "arith.cmpi": Handler(_compare_integers, 0),
    "arith.cmpf": Handler(_compare_floats, 1),
    "arith.select": Handler(_select, 1),
}
