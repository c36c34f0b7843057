# SPDX-License-Identifier: Apache-2.0
"""Operations that move elements or make them out of nothing, and compute none."""

from __future__ import annotations

import math

from llvmlite import ir

from vllm_anvil.triton_backend.emit.constants import constant
from vllm_anvil.triton_backend.emit.types import memory_type, splat, with_scalar
from vllm_anvil.triton_backend.lower.buffers import Buffer
from vllm_anvil.triton_backend.lower.chunks import Chunk, chunk_of, repeated, vector_of
from vllm_anvil.triton_backend.lower.function import FunctionLowering
from vllm_anvil.triton_backend.lower.lanes import Addresses, Lanes
from vllm_anvil.triton_backend.lower.loops import each_chunk
from vllm_anvil.triton_backend.lower.memory import load_lanes
from vllm_anvil.triton_backend.lower.positions import Index, Position
from vllm_anvil.triton_backend.lower.registry import eager, lazy
from vllm_anvil.triton_backend.lower.tile_memory import load_chunk, store_chunk
from vllm_anvil.triton_backend.ttir.model import (
    Operation,
    PointerType,
    ScalarType,
    TensorType,
    Value,
    element_of,
)

I32 = ir.IntType(32)
I64 = ir.IntType(64)


def shape_of(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.shape


# Constants


@eager("arith.constant")
def lower_constant(lowering: FunctionLowering, operation: Operation) -> None:
    number = operation.attributes["value"]
    result = operation.result
    if isinstance(number, list):
        lowering.define(result, _constant_tile(lowering, result, number))
    elif isinstance(result.type, TensorType):
        lowering.remember(operation)
    else:
        lowering.define(result, constant(result.type, number))


def _constant_tile(lowering: FunctionLowering, value: Value, numbers: list[float]) -> Buffer:
    assert isinstance(value.type, TensorType)
    element = value.type.element
    assert isinstance(element, ScalarType)
    stored = element if element.name != "i1" else ScalarType("i8")
    items = [constant(stored, number) for number in numbers]
    initial = ir.Constant(ir.ArrayType(memory_type(element), len(items)), items)
    variable = global_constant(lowering.module, "constant", initial)
    return Buffer(variable, value.type.shape, element)


def global_constant(module: ir.Module, name: str, initial: ir.Constant) -> ir.Value:
    """A pointer to a constant in memory."""
    variable = ir.GlobalVariable(module, initial.type, module.get_unique_name(name))
    variable.initializer = initial
    variable.linkage = "internal"
    variable.global_constant = True
    variable.type = ir.PointerType()  # llvmlite still says what it points to
    return variable


@lazy("arith.constant")
def constant_chunk(lowering: FunctionLowering, operation: Operation, position: Position) -> Chunk:
    element = element_of(operation.result.type)
    return repeated(element, constant(element, operation.attributes["value"]), position.lanes)


@eager("ub.poison")
def lower_poison(lowering: FunctionLowering, operation: Operation) -> None:
    """Any value will do."""
    operation.attributes["value"] = 0
    operation.name = "arith.constant"
    lower_constant(lowering, operation)


@lazy("tt.make_range")
def range_chunk(lowering: FunctionLowering, operation: Operation, position: Position) -> Chunk:
    (index,) = position.indices
    start = operation.attributes["start"]
    base = index.base
    if isinstance(base, int):
        base = I32(base + start)
    elif start:
        base = lowering.builder.add(base, I32(start))
    return Lanes(element_of(operation.result.type), position.lanes, base, index.pattern)


# Views


@lazy("tt.splat")
def splat_chunk(lowering: FunctionLowering, operation: Operation, position: Position) -> Chunk:
    return lowering.chunk(operation.operands[0], position)


@lazy("tt.broadcast")
def broadcast_chunk(lowering: FunctionLowering, operation: Operation, position: Position) -> Chunk:
    source = operation.operands[0]
    return lowering.chunk(source, position.broadcast_from(shape_of(source)))


@lazy("tt.expand_dims")
def expand_chunk(lowering: FunctionLowering, operation: Operation, position: Position) -> Chunk:
    return lowering.chunk(operation.operands[0], position.without(operation.attributes["axis"]))


@lazy("tt.trans")
def transposed_chunk(lowering: FunctionLowering, operation: Operation, position: Position) -> Chunk:
    return lowering.chunk(operation.operands[0], position.permuted(operation.attributes["order"]))


@lazy("tt.reshape")
def reshaped_chunk(lowering: FunctionLowering, operation: Operation, position: Position) -> Chunk:
    source, builder = operation.operands[0], lowering.builder

    def make() -> Position:
        flat = position.flat(builder, shape_of(operation.result))
        return Position.of_flat(builder, flat, shape_of(source))

    key = ("reshape", shape_of(operation.result), shape_of(source), position.key)
    return lowering.chunk(source, lowering.once(key, make))


@eager("tt.unsplat")
def lower_unsplat(lowering: FunctionLowering, operation: Operation) -> None:
    """The one element of a tile, as a scalar."""
    source = operation.operands[0]
    with lowering.new_chunk():
        zero = Index(0, (0,))
        chunk = lowering.chunk(source, Position(1, (zero,) * len(shape_of(source))))
    base = chunk.base
    assert base is not None
    lowering.define(operation.result, base)


# Putting tiles together, taking them apart


@lazy("tt.join")
def joined_chunk(lowering: FunctionLowering, operation: Operation, position: Position) -> Chunk:
    """A new last dimension of 2."""
    axis = len(position.indices) - 1
    return _one_of_two(lowering, operation, position.without(axis), position.indices[axis])


def _one_of_two(
    lowering: FunctionLowering, operation: Operation, position: Position, which: Index
) -> Chunk:
    """Lanes of the first operand where `which` is 0, of the second where it is 1."""
    builder, count = lowering.builder, position.lanes
    first, second = (lowering.chunk(value, position) for value in operation.operands)
    if isinstance(which.base, int) and not any(which.pattern):
        return second if which.base else first
    bit = Lanes.of_index(which).vector(builder)
    condition = builder.icmp_unsigned("!=", bit, ir.Constant(bit.type, None))
    vectors = [vector_of(builder, chunk) for chunk in (first, second)]
    element = element_of(operation.result.type)
    return chunk_of(builder, element, count, builder.select(condition, vectors[1], vectors[0]))


@eager("tt.split")
def lower_split(lowering: FunctionLowering, operation: Operation) -> None:
    """Each half of a last dimension of 2 is read from the whole in memory."""
    source = operation.operands[0]
    buffer = lowering.materialize(source)
    for half, result in enumerate(operation.results):
        assert isinstance(result.type, TensorType)
        target = lowering.buffers.take(result.type)

        def body(position: Position, half: int = half, target: Buffer = target) -> None:
            axis = len(position.indices)
            index = Index(half, (0,) * position.lanes)
            chunk = load_chunk(lowering.builder, buffer, position.with_inserted(axis, index))
            store_chunk(lowering.builder, target, position, chunk)

        each_chunk(lowering, result.type.shape, body)
        lowering.define(result, target)


@eager("tt.cat")
def lower_cat(lowering: FunctionLowering, operation: Operation) -> None:
    """One tile after the other along the first dimension."""
    result = operation.result
    assert isinstance(result.type, TensorType)
    whole = lowering.buffers.take(result.type)
    start = 0
    for source in operation.operands:
        assert isinstance(source.type, TensorType)
        pointer = lowering.builder.gep(
            whole.pointer, [I64(start)], source_etype=memory_type(whole.element)
        )
        lowering.store_tile(source, Buffer(pointer, source.type.shape, whole.element))
        start += source.type.size
    lowering.define(result, whole)


@eager("tt.gather")
def lower_gather(lowering: FunctionLowering, operation: Operation) -> None:
    """`result[..., i, ...] = source[..., index[..., i, ...], ...]`.

    An index outside the source is undefined in Triton; here it wraps, and reads nothing else.
    """
    source, index = operation.operands
    result, axis = operation.result, operation.attributes["axis"]
    assert isinstance(result.type, TensorType)
    buffer = lowering.materialize(source)
    lowering.materialize(index)
    target = lowering.buffers.take(result.type)
    builder = lowering.builder
    shape = buffer.shape
    stride = math.prod(shape[axis + 1 :])
    element = PointerType(buffer.element)

    def body(position: Position) -> None:
        picked = lowering.numbers(index, position).vector(builder)
        wide = with_scalar(picked.type, I64)
        if picked.type != wide:
            picked = builder.sext(picked, wide)
        picked = builder.and_(picked, splat(wide, shape[axis] - 1))
        offset = builder.mul(picked, splat(wide, stride))
        others = position.with_index(axis, position.zero()).flat(builder, shape)
        places = Addresses.uniform(element, position.lanes, buffer.pointer)
        places = places.advanced(builder, Lanes.of_index(others))
        places = places.advanced(builder, Lanes.of(ScalarType("i64"), position.lanes, offset))
        store_chunk(builder, target, position, load_lanes(builder, places, None, None))

    each_chunk(lowering, result.type.shape, body)
    lowering.define(result, target)
