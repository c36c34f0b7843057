# SPDX-License-Identifier: Apache-2.0
"""Reductions along an axis.

The combining function is taken to be associative and commutative, as it has to be on a GPU: along
the last axis, lanes and several accumulators are combined at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from vllm_anvil.triton_backend.emit.types import memory_type, to_memory
from vllm_anvil.triton_backend.errors import UnsupportedKernel
from vllm_anvil.triton_backend.lower.buffers import Buffer
from vllm_anvil.triton_backend.lower.chunks import Chunk
from vllm_anvil.triton_backend.lower.combine import combined
from vllm_anvil.triton_backend.lower.function import FunctionLowering
from vllm_anvil.triton_backend.lower.intrinsics import shuffled
from vllm_anvil.triton_backend.lower.lanes import Addresses, Lanes
from vllm_anvil.triton_backend.lower.loops import LANES, counted, each_chunk
from vllm_anvil.triton_backend.lower.positions import Index, Position
from vllm_anvil.triton_backend.lower.registry import eager
from vllm_anvil.triton_backend.lower.shape import shape_of
from vllm_anvil.triton_backend.lower.tile_memory import store_chunk
from vllm_anvil.triton_backend.ttir.model import Block, Operation, TensorType, Value

I32 = ir.IntType(32)
# Chunks that are reduced side by side: a float operation's result is there after four cycles.
ACCUMULATORS = 4
# Elements along an axis that are combined without a loop.
UNROLLED = 8


def as_vector(builder: ir.IRBuilder, chunk: Chunk) -> ir.Value:
    if isinstance(chunk, Addresses):
        raise UnsupportedKernel("pointers cannot be reduced")
    return chunk.vector(builder)


@eager("tt.reduce")
def lower_reduce(lowering: FunctionLowering, operation: Operation) -> None:
    shape = shape_of(operation.operands[0])
    axis = operation.attributes["axis"]
    block = operation.regions[0].block
    if axis == len(shape) - 1 and (shape[axis] >= LANES or len(shape) == 1):
        _reduce_rows(lowering, operation, block, shape)
    else:
        _reduce_across(lowering, operation, block, axis, shape[axis])


# Along the last axis: lanes are neighbours in a row


def _reduce_rows(
    lowering: FunctionLowering, operation: Operation, block: Block, shape: tuple[int, ...]
) -> None:
    builder = lowering.builder
    rows = 1
    for extent in shape[:-1]:
        rows *= extent
    if len(shape) == 1:
        scalars = _reduce_row(lowering, operation.operands, block, shape, None)
        for result, scalar in zip(operation.results, scalars, strict=True):
            lowering.define(result, scalar)
        return
    buffers = [_buffer_for(lowering, result) for result in operation.results]

    def row(index: int | ir.Value) -> None:
        scalars = _reduce_row(lowering, operation.operands, block, shape, index)
        place = I32(index) if isinstance(index, int) else index
        for buffer, scalar in zip(buffers, scalars, strict=True):
            pointer = builder.gep(buffer.pointer, [place], source_etype=memory_type(buffer.element))
            builder.store(to_memory(builder, scalar, buffer.element), pointer)

    if rows == 1:
        row(0)
    else:
        with counted(builder, rows) as index:
            row(index)
    for result, buffer in zip(operation.results, buffers, strict=True):
        lowering.define(result, buffer)


def _buffer_for(lowering: FunctionLowering, value: Value) -> Buffer:
    assert isinstance(value.type, TensorType)
    return lowering.buffers.take(value.type)


def _reduce_row(
    lowering: FunctionLowering,
    operands: Sequence[Value],
    block: Block,
    shape: tuple[int, ...],
    row: int | ir.Value | None,
) -> list[ir.Value]:
    """One row of the operands, as a scalar each."""
    builder = lowering.builder
    lanes = min(shape[-1], LANES)
    chunks = shape[-1] // lanes
    pattern = tuple(range(lanes))

    def vectors(column: int | ir.Value) -> list[ir.Value]:
        with lowering.new_chunk():
            indices: tuple[Index, ...] = (Index(column, pattern),)
            if row is not None:
                outer = Position.of_flat(builder, Index(row, (0,) * lanes), shape[:-1])
                indices = (*outer.indices, *indices)
            position = Position(lanes, indices)
            return [as_vector(builder, lowering.chunk(value, position)) for value in operands]

    def plus(column: ir.Value, offset: int) -> ir.Value:
        return builder.or_(column, I32(offset)) if offset else column

    side_by_side = min(ACCUMULATORS, chunks)
    totals = [vectors(lanes * number) for number in range(side_by_side)]
    if chunks > side_by_side:
        stride = lanes * side_by_side

        def step(column: ir.Value, state: list[list[ir.Value]]) -> list[list[ir.Value]]:
            return [
                combined(lowering, block, total, vectors(plus(column, lanes * number)))
                for number, total in enumerate(state)
            ]

        totals = folded(builder, stride, shape[-1], stride, totals, step)
    while len(totals) > 1:
        totals = [
            combined(lowering, block, totals[number], totals[number + len(totals) // 2])
            for number in range(len(totals) // 2)
        ]
    return _combine_lanes(lowering, block, totals[0], lanes)


def _combine_lanes(
    lowering: FunctionLowering, block: Block, vectors: list[ir.Value], lanes: int
) -> list[ir.Value]:
    builder = lowering.builder
    while lanes > 1:
        lanes //= 2
        if lanes == 1:
            halves = [
                [builder.extract_element(vector, I32(lane)) for vector in vectors]
                for lane in (0, 1)
            ]
        else:
            halves = [
                [
                    shuffled(builder, vector, range(half * lanes, (half + 1) * lanes))
                    for vector in vectors
                ]
                for half in (0, 1)
            ]
        vectors = combined(lowering, block, halves[0], halves[1])
    return vectors


State = list[list[ir.Value]]


def folded(
    builder: ir.IRBuilder,
    start: int,
    stop: int,
    step: int,
    initial: State,
    body: Callable[[ir.Value, State], State],
) -> State:
    """A loop from `start` to `stop` (at least one step) that carries values."""
    before = builder.block
    loop = builder.append_basic_block("fold")
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(I32)
    index.add_incoming(I32(start), before)
    phis = [[builder.phi(value.type) for value in values] for values in initial]
    for ones, values in zip(phis, initial, strict=True):
        for phi, value in zip(ones, values, strict=True):
            phi.add_incoming(value, before)
    following = body(index, [list(ones) for ones in phis])
    for ones, values in zip(phis, following, strict=True):
        for phi, value in zip(ones, values, strict=True):
            phi.add_incoming(value, builder.block)
    next_index = builder.add(index, I32(step), flags=("nuw", "nsw"))
    index.add_incoming(next_index, builder.block)
    after = builder.append_basic_block("fold_end")
    builder.cbranch(builder.icmp_unsigned("<", next_index, I32(stop)), loop, after)
    builder.position_at_end(after)
    return following


# Along another axis: lanes are neighbours in the result


def _reduce_across(
    lowering: FunctionLowering, operation: Operation, block: Block, axis: int, extent: int
) -> None:
    builder = lowering.builder
    buffers = [_buffer_for(lowering, result) for result in operation.results]

    def body(position: Position) -> None:
        def vectors(index: int | ir.Value) -> list[ir.Value]:
            with lowering.new_chunk():
                place = position.with_inserted(axis, Index(index, (0,) * position.lanes))
                return [
                    as_vector(builder, lowering.chunk(value, place)) for value in operation.operands
                ]

        total = vectors(0)
        if extent <= UNROLLED:
            for index in range(1, extent):
                total = combined(lowering, block, total, vectors(index))
        else:
            (total,) = folded(
                builder,
                1,
                extent,
                1,
                [total],
                lambda index, state: [combined(lowering, block, state[0], vectors(index))],
            )
        for buffer, vector in zip(buffers, total, strict=True):
            chunk = Lanes.of(buffer.element, position.lanes, vector)
            store_chunk(builder, buffer, position, chunk)

    each_chunk(lowering, buffers[0].shape, body)
    for result, buffer in zip(operation.results, buffers, strict=True):
        lowering.define(result, buffer)
