# SPDX-License-Identifier: Apache-2.0
"""Conversions between types.

Floats become integers toward zero; what the integer cannot hold becomes its least or greatest
number, and NaN becomes 0. Integers become 16-bit floats by way of float32, as on GPUs and in
PyTorch.
"""

from __future__ import annotations

from llvmlite import ir

from vllm_anvil.triton_backend.emit import floats
from vllm_anvil.triton_backend.emit.math.formats import clamped, format_of
from vllm_anvil.triton_backend.emit.types import scalar_of
from vllm_anvil.triton_backend.emit.vectors import Lanes
from vllm_anvil.triton_backend.lower.elementwise.call import Call, Emitter, Handler
from vllm_anvil.triton_backend.ttir.model import (
    ElementType,
    Operation,
    PointerType,
    ScalarType,
    element_of,
)


def _resize(signed: bool) -> Emitter:
    """An integer of another width."""

    def emit(call: Call) -> Lanes:
        (x,) = call.operands
        target = call.result_type
        return resized(x, scalar_of(target).width, signed)

    return emit


def resized(x: Lanes, bits: int, signed: bool) -> Lanes:
    if bits == x.bits:
        return x
    name = "trunc" if bits < x.bits else "sext" if signed else "zext"
    return x.cast(name, x.integers(bits))


def _convert_float(call: Call) -> Lanes:
    rounding = str(call.operation.attributes.get("rounding", "rtne")).lower()
    if rounding not in ("rtne", "rtz"):
        call.refuse(f"the rounding {rounding} is unknown")
    (x,) = call.operands
    return floats.converted(x, call.float_operand(), call.float_result(), rounding == "rtz")


def _from_integer(signed: bool) -> Emitter:
    def emit(call: Call) -> Lanes:
        (x,) = call.operands
        return float_of_integer(x, call.float_result(), signed)

    return emit


def float_of_integer(x: Lanes, target: ScalarType, signed: bool) -> Lanes:
    if x.bits < 32:
        # Exact, and what the processor converts.
        x = resized(x, 32, signed)
        signed = True
    wide = x.cast("sitofp" if signed else "uitofp", x.floats(64 if target.name == "f64" else 32))
    return wide if target.name == "f64" else floats.narrowed(wide, target)


def _to_integer(signed: bool) -> Emitter:
    def emit(call: Call) -> Lanes:
        (x,) = call.computed_operands()
        return integer_of_float(x, scalar_of(call.result_type).width, signed)

    return emit


def integer_of_float(x: Lanes, bits: int, signed: bool) -> Lanes:
    """float32 or float64 as an integer, saturating; as a boolean, whether that is not 0.

    By hand: LLVM takes its own saturating conversion of vectors apart into scalars.
    """
    width = max(bits, 8)
    digits = width - signed
    precision = format_of(x).mantissa_bits + 1
    # The greatest float that the integer holds, which is less than its own greatest number where
    # the float has fewer digits.
    greatest = float((1 << digits) - (1 << max(0, digits - precision)))
    least = -(2.0**digits) if signed else 0.0
    bounded = clamped(x.is_nan().choose(0.0, x), least, greatest)
    result = bounded.cast("fptosi" if signed else "fptoui", x.integers(width))
    if digits > precision:
        result = (x > greatest).choose((1 << digits) - 1, result)
    return result.differs(0) if bits == 1 else result


def _bitcast(call: Call) -> Lanes:
    (x,) = call.operands
    target = call.result_type
    source, target_element = call.operand_element(), call.result_element()
    if _width(source) != _width(target_element):
        call.refuse(f"{source} and {target_element} differ in width")
    if isinstance(source, PointerType) != isinstance(target_element, PointerType):
        call.refuse("a pointer is cast by ptr_to_int or int_to_ptr")
    return x if x.type == target else x.cast("bitcast", target)


def _width(element: ElementType) -> int:
    return 64 if isinstance(element, PointerType) else element.bits


def _integer_to_pointer(call: Call) -> Lanes:
    """In vectors, pointers are addresses already."""
    (x,) = call.operands
    address = resized(x, 64, signed=False)
    return address if call.lanes else address.cast("inttoptr", ir.PointerType())


def _pointer_to_integer(call: Call) -> Lanes:
    (x,) = call.operands
    address = x if call.lanes else x.cast("ptrtoint", ir.IntType(64))
    return resized(address, scalar_of(call.result_type).width, signed=False)


def _add_to_pointer(call: Call) -> Lanes:
    """The offset counts elements and has a sign."""
    pointer, offset = call.operands
    element = call.operand_element()
    if not isinstance(element, PointerType):
        call.refuse(f"{element} is no pointer")
    offset = resized(offset, 64, signed=True)
    if call.lanes:
        return pointer + offset * element.pointee.bytes
    # Booleans take a byte, as all of `memory_type` does.
    distance = (offset * element.pointee.bytes).value
    moved = call.builder.gep(pointer.value, [distance], source_etype=ir.IntType(8))
    return Lanes(call.builder, moved)


def _float_cost(operation: Operation) -> int:
    types = (element_of(operation.operands[0].type), element_of(operation.results[0].type))
    names = [str(type_) for type_ in types]
    if any(name.startswith("f8") for name in names) or names[0] == "f64" != names[1]:
        return 8
    return 3 if names[1] == "bf16" else 0


HANDLERS = {
    "arith.extsi": Handler(_resize(signed=True), 0),
    "arith.extui": Handler(_resize(signed=False), 0),
    "arith.trunci": Handler(_resize(signed=True), 0),
    "arith.index_cast": Handler(_resize(signed=True), 0),
    "arith.index_castui": Handler(_resize(signed=False), 0),
    "arith.extf": Handler(_convert_float, _float_cost),
    "arith.truncf": Handler(_convert_float, _float_cost),
    "arith.convertf": Handler(_convert_float, _float_cost),
    "tt.fp_to_fp": Handler(_convert_float, _float_cost),
    "arith.sitofp": Handler(_from_integer(signed=True), 1),
    "arith.uitofp": Handler(_from_integer(signed=False), 2),
    "arith.fptosi": Handler(_to_integer(signed=True), 4),
    "arith.fptoui": Handler(_to_integer(signed=False), 4),
    "arith.bitcast": Handler(_bitcast, 0),
    "tt.bitcast": Handler(_bitcast, 0),
    "tt.int_to_ptr": Handler(_integer_to_pointer, 0),
    "tt.ptr_to_int": Handler(_pointer_to_integer, 0),
    "tt.addptr": Handler(_add_to_pointer, 0),
}
