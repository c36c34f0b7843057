# SPDX-License-Identifier: Apache-2.0
"""Matrix products of tiles.

Both operands go to memory in the type that is computed in (float32 for floats up to that); the
product is made in blocks of rows and columns that stay in registers over the inner dimension.
"""

from __future__ import annotations

import math

from llvmlite import ir

from vllm_anvil.triton_backend.emit.target import HostCpu
from vllm_anvil.triton_backend.emit.types import llvm_type
from vllm_anvil.triton_backend.errors import UnsupportedKernel
from vllm_anvil.triton_backend.lower import elementwise
from vllm_anvil.triton_backend.lower.buffers import Buffer
from vllm_anvil.triton_backend.lower.function import FunctionLowering
from vllm_anvil.triton_backend.lower.intrinsics import call_intrinsic, type_suffix
from vllm_anvil.triton_backend.lower.lanes import Lanes
from vllm_anvil.triton_backend.lower.loops import LANES, counted, each_chunk
from vllm_anvil.triton_backend.lower.positions import Position
from vllm_anvil.triton_backend.lower.reduction import folded
from vllm_anvil.triton_backend.lower.registry import eager
from vllm_anvil.triton_backend.lower.tile_memory import load_chunk, store_chunk
from vllm_anvil.triton_backend.ttir.model import (
    ElementType,
    Operation,
    ScalarType,
    TensorType,
    Value,
    element_of,
)

I32 = ir.IntType(32)
F32 = ScalarType("f32")
ROWS = 4


def columns_of_vectors(cpu: HostCpu) -> int:
    """How many vectors of columns a block has: with ROWS rows they fill the registers."""
    return 4 if cpu.has("avx512f") else 1


@eager("tt.dot")
def lower_dot(lowering: FunctionLowering, operation: Operation) -> None:
    a, b, c = operation.operands
    computed = _computed_type(a, operation.result)
    left, right = (_in_memory(lowering, value, computed) for value in (a, b))
    add_product(lowering, operation, left, right, c)


def add_product(
    lowering: FunctionLowering, operation: Operation, left: Buffer, right: Buffer, c: Value
) -> None:
    """Makes the operation's result: `c` plus the product of two matrices, or of a batch of each."""
    result = operation.result
    assert isinstance(result.type, TensorType) and isinstance(left.element, ScalarType)
    computed = left.element
    total = _accumulator(lowering, operation, c, computed)
    *batch, rows, columns = total.shape
    inner = left.shape[-1]
    builder = lowering.builder
    count = math.prod(batch)
    if count == 1:
        _multiply(lowering, left, right, total, rows, columns, inner)
    else:
        with counted(builder, count) as index:
            parts = [
                _part(builder, buffer, index, size)
                for buffer, size in (
                    (left, rows * inner),
                    (right, inner * columns),
                    (total, rows * columns),
                )
            ]
            _multiply(lowering, parts[0], parts[1], parts[2], rows, columns, inner)
    if result.type.element != computed:
        total = converted_buffer(lowering, total, result.type.element)
    lowering.define(result, total)


def _computed_type(operand: Value, result: Value) -> ScalarType:
    element, wanted = element_of(operand.type), element_of(result.type)
    if not isinstance(element, ScalarType) or not isinstance(wanted, ScalarType):
        raise UnsupportedKernel("a product of pointers")
    if element.is_float:
        return ScalarType("f64") if "f64" in (element.name, wanted.name) else F32
    return wanted


def _part(builder: ir.IRBuilder, buffer: Buffer, index: ir.Value, size: int) -> Buffer:
    offset = builder.mul(index, I32(size))
    pointer = builder.gep(buffer.pointer, [offset], source_etype=llvm_type(buffer.element))
    return Buffer(pointer, buffer.shape[1:], buffer.element)


# Operands


def _in_memory(lowering: FunctionLowering, value: Value, element: ScalarType) -> Buffer:
    """A tile in memory, as `element`."""
    assert isinstance(value.type, TensorType)
    if value.type.element == element:
        return lowering.materialize(value)
    buffer = lowering.buffers.take(TensorType(value.type.shape, element))

    def body(position: Position) -> None:
        lanes = converted_lanes(lowering, lowering.numbers(value, position), element)
        store_chunk(lowering.builder, buffer, position, lanes)

    each_chunk(lowering, buffer.shape, body)
    return buffer


def converted_buffer(lowering: FunctionLowering, source: Buffer, element: ElementType) -> Buffer:
    """A copy whose elements are of another type."""
    assert isinstance(element, ScalarType)
    target = lowering.buffers.take(TensorType(source.shape, element))

    def body(position: Position) -> None:
        chunk = load_chunk(lowering.builder, source, position)
        assert isinstance(chunk, Lanes)
        store_chunk(lowering.builder, target, position, converted_lanes(lowering, chunk, element))

    each_chunk(lowering, target.shape, body)
    return target


def converted_lanes(lowering: FunctionLowering, lanes: Lanes, element: ScalarType) -> Lanes:
    """Rounded to nearest where the type is narrower; integers are extended with their sign."""
    source = lanes.element
    assert isinstance(source, ScalarType)
    if source == element:
        return lanes
    if source.is_float:
        wider = element.bits > source.bits
        name = "tt.fp_to_fp" if source.is_fp8 else "arith.extf" if wider else "arith.truncf"
    else:
        name = "arith.extsi" if element.bits > source.bits else "arith.trunci"
    conversion = Operation(name, [Value("", source)], [Value("", element)])
    builder = lowering.builder
    (made,) = elementwise.emit_all(builder, conversion, [lanes.vector(builder)])
    return Lanes.of(element, lanes.count, made)


def _accumulator(
    lowering: FunctionLowering, operation: Operation, value: Value, element: ScalarType
) -> Buffer:
    """Where the product is added to: a copy of the third operand, or itself where nothing else
    looks at it, as in a loop that does nothing but add products.
    """
    assert isinstance(value.type, TensorType)
    tile = lowering.tiles[value]
    is_loops_own = isinstance(tile, Buffer) and value.operation is None
    if is_loops_own and value.type.element == element and _only_yielded(lowering, operation, value):
        assert isinstance(tile, Buffer)
        return tile
    buffer = lowering.buffers.take(TensorType(value.type.shape, element))
    if value.type.element == element:
        lowering.store_tile(value, buffer)
        return buffer

    def body(position: Position) -> None:
        lanes = converted_lanes(lowering, lowering.numbers(value, position), element)
        store_chunk(lowering.builder, buffer, position, lanes)

    each_chunk(lowering, buffer.shape, body)
    return buffer


def _only_yielded(lowering: FunctionLowering, operation: Operation, value: Value) -> bool:
    users = lowering.analysis.users
    result_users = users[operation.result]
    return (
        users[value] == [operation]
        and len(result_users) == 1
        and result_users[0].name == "scf.yield"
        and lowering.analysis.depth[result_users[0]] == lowering.analysis.depth[operation]
        and lowering.is_carried_to(value, result_users[0], operation.result)
    )


# The product


def _multiply(
    lowering: FunctionLowering,
    a: Buffer,
    b: Buffer,
    c: Buffer,
    rows: int,
    columns: int,
    inner: int,
) -> None:
    """`c += a @ b`, all row by row in memory."""
    builder = lowering.builder
    lanes = min(columns, LANES)
    wide = min(columns // lanes, columns_of_vectors(lowering.cpu))
    high = min(rows, ROWS)
    element = c.element
    type_ = llvm_type(element)
    vector_type = type_ if lanes == 1 else ir.VectorType(type_, lanes)

    def at(buffer: Buffer, index: ir.Value) -> ir.Value:
        return builder.gep(buffer.pointer, [index], inbounds=True, source_etype=type_)

    def block(row: ir.Value, column: ir.Value) -> None:
        places = [
            [
                at(c, builder.add(builder.mul(builder.add(row, I32(i)), I32(columns)),
                                  builder.add(column, I32(lanes * j))))
                for j in range(wide)
            ]
            for i in range(high)
        ]  # fmt: skip
        initial = [
            [_load(builder, place, vector_type, element) for place in ones] for ones in places
        ]

        def step(k: ir.Value, totals: list[list[ir.Value]]) -> list[list[ir.Value]]:
            start = builder.add(builder.mul(k, I32(columns)), column)
            rights = [
                _load(builder, at(b, builder.add(start, I32(lanes * j))), vector_type, element)
                for j in range(wide)
            ]
            following = []
            for i, ones in enumerate(totals):
                left_index = builder.add(builder.mul(builder.add(row, I32(i)), I32(inner)), k)
                left = _load(builder, at(a, left_index), type_, element)
                repeated = Lanes.uniform(element, lanes, left).vector(builder)
                following.append(
                    [
                        _multiply_add(builder, repeated, right, total, element)
                        for right, total in zip(rights, ones, strict=True)
                    ]
                )
            return following

        made = folded(builder, 0, inner, 1, initial, step)
        for places_of_row, ones in zip(places, made, strict=True):
            for place, total in zip(places_of_row, ones, strict=True):
                builder.store(total, place).align = element.bytes

    with counted(builder, rows, high) as row, counted(builder, columns, lanes * wide) as column:
        block(row, column)


def _load(
    builder: ir.IRBuilder, pointer: ir.Value, type_: ir.Type, element: ElementType
) -> ir.Value:
    loaded = builder.load(pointer, typ=type_)
    loaded.align = element.bytes
    return loaded


def _multiply_add(
    builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value, element: ElementType
) -> ir.Value:
    if isinstance(element, ScalarType) and element.is_float:
        # One rounding where the processor has such an instruction, two elsewhere.
        name = f"llvm.fmuladd.{type_suffix(a.type)}"
        return call_intrinsic(builder, name, a.type, [a, b, c])
    return builder.add(builder.mul(a, b), c)
