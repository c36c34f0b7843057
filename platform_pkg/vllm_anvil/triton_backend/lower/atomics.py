# SPDX-License-Identifier: Apache-2.0
"""Atomic operations, one element after the other: programs of a grid run at the same time."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from vllm_anvil.triton_backend.emit.types import llvm_type, memory_type
from vllm_anvil.triton_backend.errors import UnsupportedKernel
from vllm_anvil.triton_backend.lower import elementwise
from vllm_anvil.triton_backend.lower.analysis import is_tile
from vllm_anvil.triton_backend.lower.chunks import repeated
from vllm_anvil.triton_backend.lower.function import FunctionLowering
from vllm_anvil.triton_backend.lower.loops import counted
from vllm_anvil.triton_backend.lower.positions import Index, Position
from vllm_anvil.triton_backend.lower.registry import eager
from vllm_anvil.triton_backend.lower.tile_memory import store_chunk
from vllm_anvil.triton_backend.ttir.model import (
    Operation,
    ScalarType,
    TensorType,
    Value,
    element_of,
)

# Triton's names of what is done, as LLVM calls it.
_OPERATIONS = {
    "and": "and",
    "or": "or",
    "xor": "xor",
    "add": "add",
    "max": "max",
    "min": "min",
    "umax": "umax",
    "umin": "umin",
    "exch": "xchg",
    "fadd": "fadd",
}

# One atomic operation on scalars (pointer, then values); returns what was there before.
Atomic = Callable[[list[ir.Value]], ir.Value]


@eager("tt.atomic_rmw")
def lower_atomic_rmw(lowering: FunctionLowering, operation: Operation) -> None:
    kind = operation.attributes["words"][0]
    element = element_of(operation.operands[1].type)
    if kind not in _OPERATIONS or not isinstance(element, ScalarType):
        raise UnsupportedKernel(f"atomic `{kind}` of {element}")
    pointer, value, *mask = operation.operands

    def atomic(scalars: list[ir.Value]) -> ir.Value:
        return _read_modify_write(lowering, kind, element, scalars[0], scalars[1])

    _for_each_element(lowering, operation, [pointer, value], mask, atomic)


@eager("tt.atomic_cas")
def lower_atomic_cas(lowering: FunctionLowering, operation: Operation) -> None:
    """The value is stored where memory holds what is expected; compared as bits."""
    element = element_of(operation.operands[1].type)
    builder = lowering.builder

    def atomic(scalars: list[ir.Value]) -> ir.Value:
        pointer, expected, value = scalars
        bits = ir.IntType(element.bytes * 8)
        outcome = builder.cmpxchg(
            pointer, _bits(builder, expected, bits), _bits(builder, value, bits),
            "acq_rel", "acquire",
        )  # fmt: skip
        return _from_bits(builder, builder.extract_value(outcome, 0), llvm_type(element))

    _for_each_element(lowering, operation, operation.operands, [], atomic)


def _bits(builder: ir.IRBuilder, value: ir.Value, bits: ir.Type) -> ir.Value:
    if isinstance(value.type, ir.PointerType):
        return builder.ptrtoint(value, bits)
    return value if value.type == bits else builder.bitcast(value, bits)


def _from_bits(builder: ir.IRBuilder, value: ir.Value, type_: ir.Type) -> ir.Value:
    if isinstance(type_, ir.PointerType):
        return builder.inttoptr(value, type_)
    return value if value.type == type_ else builder.bitcast(value, type_)


def _read_modify_write(
    lowering: FunctionLowering, kind: str, element: ScalarType, pointer: ir.Value, value: ir.Value
) -> ir.Value:
    builder = lowering.builder
    if kind == "exch" and element.is_float:
        bits = ir.IntType(element.bits)
        old = builder.atomic_rmw("xchg", pointer, _bits(builder, value, bits), "acq_rel")
        return _from_bits(builder, old, llvm_type(element))
    if element.name == "bf16":
        return _add_bf16(lowering, element, pointer, value)
    return builder.atomic_rmw(_OPERATIONS[kind], pointer, value, "acq_rel")


def _add_bf16(
    lowering: FunctionLowering, element: ScalarType, pointer: ir.Value, value: ir.Value
) -> ir.Value:
    """By comparing and exchanging, for which bf16 is bits."""
    builder = lowering.builder
    bits = memory_type(element)
    addition = Operation("arith.addf", [Value("", element)] * 2, [Value("", element)])
    first = builder.load(pointer, typ=bits)
    before = builder.block
    loop, after = builder.append_basic_block("retry"), builder.append_basic_block("added")
    builder.branch(loop)
    builder.position_at_end(loop)
    seen = builder.phi(bits)
    seen.add_incoming(first, before)
    (total,) = elementwise.emit_all(builder, addition, [seen, value])
    outcome = builder.cmpxchg(pointer, seen, total, "acq_rel", "acquire")
    found = builder.extract_value(outcome, 0)
    seen.add_incoming(found, builder.block)
    builder.cbranch(builder.extract_value(outcome, 1), after, loop)
    builder.position_at_end(after)
    return found


def _for_each_element(
    lowering: FunctionLowering,
    operation: Operation,
    operands: list[Value],
    mask: list[Value],
    atomic: Atomic,
) -> None:
    result = operation.result
    if not isinstance(result.type, TensorType):
        scalars = [lowering.scalar(value) for value in operands]
        condition = lowering.scalar(mask[0]) if mask else None
        lowering.define(result, _where(lowering, condition, scalars, atomic))
        return
    buffer = lowering.buffers.take(result.type)
    for value in (*operands, *mask):
        if is_tile(value) and lowering.reads_memory(value):
            lowering.materialize(value)
    with counted(lowering.builder, result.type.size) as index, lowering.new_chunk():
        flat = Index(index, (0,))
        position = Position.of_flat(lowering.builder, flat, result.type.shape)
        chunks = [lowering.chunk(value, position) for value in (*operands, *mask)]
        scalars = [chunk.base for chunk in chunks if chunk.base is not None]
        condition = scalars.pop() if mask else None
        old = _where(lowering, condition, scalars, atomic)
        chunk = repeated(buffer.element, old, 1)
        store_chunk(lowering.builder, buffer, position, chunk)
    lowering.define(result, buffer)


def _where(
    lowering: FunctionLowering,
    condition: ir.Value | None,
    scalars: list[ir.Value],
    atomic: Atomic,
) -> ir.Value:
    """Done where the condition is true; elsewhere the result is zero and memory untouched."""
    if condition is None:
        return atomic(scalars)
    builder = lowering.builder
    before = builder.block
    with builder.if_then(condition):
        old = atomic(scalars)
        inside = builder.block
    merged = builder.phi(old.type)
    merged.add_incoming(ir.Constant(old.type, None), before)
    merged.add_incoming(old, inside)
    return merged
