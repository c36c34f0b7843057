# SPDX-License-Identifier: Apache-2.0
"""Constants and repeated scalars."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from llvmlite import ir

from vllm_anvil.triton_backend.emit.types import llvm_type
from vllm_anvil.triton_backend.ttir.model import ElementType, PointerType

Number = int | float
I32 = ir.IntType(32)


def bf16_bits(value: float) -> int:
    """The pattern of a value that bf16 holds exactly; of another, of the nearest."""
    if math.isnan(value):
        return 0x7FC0
    try:
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        bits = 0xFF800000 if value < 0 else 0x7F800000
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF


def _scalar(element: ElementType, value: Number) -> ir.Constant:
    type_ = llvm_type(element)
    if isinstance(element, PointerType):
        return ir.Constant(type_, None)
    if element.name == "bf16":
        return ir.Constant(type_, bf16_bits(float(value)))
    if isinstance(type_, ir.IntType):
        # llvmlite writes what it is given: in the width's signed range, as LLVM reads it.
        number = int(value) & ((1 << type_.width) - 1)
        return ir.Constant(type_, number)
    return ir.Constant(type_, float(value))


def constant(element: ElementType, value: Number | Sequence[Number]) -> ir.Constant:
    """A scalar, or of a sequence a vector. fp8 values are given as their bit patterns."""
    if isinstance(value, (int, float)):
        return _scalar(element, value)
    items = [_scalar(element, item) for item in value]
    return ir.Constant(ir.VectorType(items[0].type, len(items)), items)


def splat(builder: ir.IRBuilder, scalar: ir.Value, count: int) -> ir.Value:
    """A vector of `count` lanes that all hold the scalar."""
    type_ = ir.VectorType(scalar.type, count)
    if isinstance(scalar, ir.Constant) and scalar.constant is not None:
        return ir.Constant(type_, [scalar] * count)
    undefined = ir.Constant(type_, ir.Undefined)
    first = builder.insert_element(undefined, scalar, I32(0))
    zeros = ir.Constant(ir.VectorType(I32, count), [0] * count)
    return builder.shuffle_vector(first, undefined, zeros)
