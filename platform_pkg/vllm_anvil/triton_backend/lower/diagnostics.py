# SPDX-License-Identifier: Apache-2.0
"""What a kernel says while it runs: prints and assertions."""

from __future__ import annotations

from llvmlite import ir

from vllm_anvil.triton_backend.lower import elementwise
from vllm_anvil.triton_backend.lower.abi import (
    CONTEXT,
    FAIL,
    PRINT,
    SNPRINTF,
    load_launch_pointer,
)
from vllm_anvil.triton_backend.lower.analysis import is_tile
from vllm_anvil.triton_backend.lower.function import FunctionLowering
from vllm_anvil.triton_backend.lower.intrinsics import any_lane
from vllm_anvil.triton_backend.lower.loops import counted, each_chunk
from vllm_anvil.triton_backend.lower.positions import Index, Position
from vllm_anvil.triton_backend.lower.registry import eager
from vllm_anvil.triton_backend.lower.shape import global_constant, shape_of
from vllm_anvil.triton_backend.ttir.model import (
    ElementType,
    Operation,
    PointerType,
    ScalarType,
    Value,
    element_of,
)

I8 = ir.IntType(8)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
POINTER = ir.PointerType()
# Room for one printed element: its place in grid and tile, the prefix and the value.
LINE_BYTES = 512


def text_constant(lowering: FunctionLowering, text: str) -> ir.Value:
    """A pointer to a constant, zero-terminated text."""
    data = bytearray(text.encode() + b"\0")
    initial = ir.Constant(ir.ArrayType(I8, len(data)), data)
    return global_constant(lowering.module, "text", initial)


# Assertions


@eager("tt.assert")
def lower_assert(lowering: FunctionLowering, operation: Operation) -> None:
    """Ends the program, and the launch, where any element is false."""
    (condition,) = operation.operands
    builder = lowering.builder
    if is_tile(condition):
        failed = lowering.line_buffer(LINE_BYTES)  # a byte of it, as a flag
        builder.store(I8(0), failed)

        def body(position: Position) -> None:
            vector = lowering.numbers(condition, position).vector(builder)
            any_false = builder.zext(any_lane(builder, builder.not_(vector)), I8)
            builder.store(builder.or_(builder.load(failed, typ=I8), any_false), failed)

        each_chunk(lowering, shape_of(condition), body)
        is_false = builder.icmp_unsigned("!=", builder.load(failed, typ=I8), I8(0))
    else:
        is_false = builder.not_(lowering.scalar(condition))
    message = (operation.attributes.get("strings") or [""])[0]
    place = f" (at {operation.location})" if operation.location else ""
    with builder.if_then(is_false, likely=False):
        launch = lowering.program.launch
        fail = load_launch_pointer(builder, launch, FAIL)
        text = text_constant(lowering, f"device_assert failed: {message}{place}")
        call_pointer(
            builder, ir.VoidType(), fail, [load_launch_pointer(builder, launch, CONTEXT), text]
        )
        builder.branch(lowering.failure)


def call_pointer(
    builder: ir.IRBuilder, result: ir.Type, function: ir.Value, arguments: list[ir.Value]
) -> ir.Value:
    type_ = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(_FunctionAt(function, type_), arguments)


class _FunctionAt:
    """A function at an address, as llvmlite's calls want one: with its type."""

    def __init__(self, pointer: ir.Value, function_type: ir.FunctionType):
        self._pointer = pointer
        self.type = pointer.type
        self.function_type = function_type

    def get_reference(self) -> str:
        return str(self._pointer.get_reference())


# Prints


@eager("tt.print")
def lower_print(lowering: FunctionLowering, operation: Operation) -> None:
    """One line per element: `pid (x, y, z) idx (i, j) prefix value`."""
    prefix = operation.attributes.get("prefix") or ""
    as_hex = bool(operation.attributes.get("hex"))
    signed = operation.attributes.get("isSigned") or []
    if not operation.operands:
        _print_line(lowering, f"{prefix}\n", [], [])
    for number, value in enumerate(operation.operands):
        is_signed = bool(signed[number]) if number < len(signed) else True
        which = f" (operand {number})" if len(operation.operands) > 1 else ""
        if not is_tile(value):
            form, argument = _printable(
                lowering, element_of(value.type), lowering.scalar(value), as_hex, is_signed
            )
            _print_line(lowering, f"idx ()%s{which} {form}\n", [prefix], [argument])
            continue
        if lowering.reads_memory(value):
            lowering.materialize(value)
        _print_tile(lowering, value, prefix, which, as_hex, is_signed)


def _print_tile(
    lowering: FunctionLowering, value: Value, prefix: str, which: str, as_hex: bool, signed: bool
) -> None:
    builder = lowering.builder
    shape = shape_of(value)
    size = 1
    for extent in shape:
        size *= extent
    with counted(builder, size) as index, lowering.new_chunk():
        position = Position.of_flat(builder, Index(index, (0,)), shape)
        base = lowering.chunk(value, position).base
        assert base is not None
        form, argument = _printable(lowering, element_of(value.type), base, as_hex, signed)
        places = [
            I32(one.base) if isinstance(one.base, int) else one.base for one in position.indices
        ]
        numbers = ", ".join("%d" for _ in places)
        text = f"idx ({numbers})%s{which} {form}\n"
        _print_line(lowering, text, [*places, prefix], [argument])


def _printable(
    lowering: FunctionLowering, element: ElementType, scalar: ir.Value, as_hex: bool, signed: bool
) -> tuple[str, ir.Value]:
    """How C prints a scalar, and what it is given for that."""
    builder = lowering.builder
    if isinstance(element, PointerType):
        return "%p", scalar
    if element.is_float and not as_hex:
        if element.name != "f64":
            wide = ScalarType("f64")
            name = "tt.fp_to_fp" if element.is_fp8 else "arith.extf"
            if element.is_fp8:
                scalar = _converted(builder, name, element, ScalarType("f32"), scalar)
                element, name = ScalarType("f32"), "arith.extf"
            scalar = _converted(builder, name, element, wide, scalar)
        return "%f", scalar
    if element.is_float:
        bits = ir.IntType(element.bits)
        scalar = scalar if scalar.type == bits else builder.bitcast(scalar, bits)
        signed = False
    if scalar.type.width < 64:
        extend = builder.sext if signed and scalar.type.width > 1 else builder.zext
        if as_hex:
            extend = builder.zext
        scalar = extend(scalar, I64)
    if as_hex:
        return f"0x%0{element.bytes * 2}llx", scalar
    return ("%lld" if signed else "%llu"), scalar


def _converted(
    builder: ir.IRBuilder, name: str, source: ScalarType, target: ScalarType, scalar: ir.Value
) -> ir.Value:
    operation = Operation(name, [Value("", source)], [Value("", target)])
    return elementwise.emit_all(builder, operation, [scalar])[0]


def _print_line(
    lowering: FunctionLowering, text: str, before: list[ir.Value | str], after: list[ir.Value]
) -> None:
    builder, launch = lowering.builder, lowering.program.launch
    line = lowering.line_buffer(LINE_BYTES)
    arguments = [text_constant(lowering, one) if isinstance(one, str) else one for one in before]
    form = text_constant(lowering, "pid (%d, %d, %d) " + text)
    snprintf = load_launch_pointer(builder, launch, SNPRINTF)
    type_ = ir.FunctionType(I32, [POINTER, I64, POINTER], var_arg=True)
    values = [line, I64(LINE_BYTES), form, *lowering.program.identifiers, *arguments, *after]
    length = builder.call(_FunctionAt(snprintf, type_), values)
    limit = I32(LINE_BYTES - 1)
    length = builder.select(builder.icmp_signed("<", length, limit), length, limit)
    call_pointer(
        builder,
        ir.VoidType(),
        load_launch_pointer(builder, launch, PRINT),
        [load_launch_pointer(builder, launch, CONTEXT), line, builder.zext(length, I64)],
    )
