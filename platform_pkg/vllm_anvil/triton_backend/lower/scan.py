# SPDX-License-Identifier: Apache-2.0
"""Scans: every prefix of a row combined, in order."""

from __future__ import annotations

from llvmlite import ir

from vllm_anvil.triton_backend.emit.constants import splat
from vllm_anvil.triton_backend.lower.buffers import Buffer
from vllm_anvil.triton_backend.lower.combine import combined
from vllm_anvil.triton_backend.lower.function import FunctionLowering
from vllm_anvil.triton_backend.lower.intrinsics import shuffled
from vllm_anvil.triton_backend.lower.lanes import Lanes
from vllm_anvil.triton_backend.lower.loops import LANES, counted, each_chunk
from vllm_anvil.triton_backend.lower.positions import Index, Position
from vllm_anvil.triton_backend.lower.reduction import as_vector, folded
from vllm_anvil.triton_backend.lower.registry import eager
from vllm_anvil.triton_backend.lower.shape import shape_of
from vllm_anvil.triton_backend.lower.tile_memory import store_chunk
from vllm_anvil.triton_backend.ttir.model import Block, Operation, TensorType

I1 = ir.IntType(1)
I32 = ir.IntType(32)


@eager("tt.scan")
def lower_scan(lowering: FunctionLowering, operation: Operation) -> None:
    shape = shape_of(operation.operands[0])
    axis = operation.attributes["axis"]
    buffers = []
    for result in operation.results:
        assert isinstance(result.type, TensorType)
        buffers.append(lowering.buffers.take(result.type))
    reverse = bool(operation.attributes.get("reverse"))
    if axis == len(shape) - 1:
        _scan_rows(lowering, operation, buffers, shape, reverse)
    else:
        _scan_across(lowering, operation, buffers, axis, reverse)
    for result, buffer in zip(operation.results, buffers, strict=True):
        lowering.define(result, buffer)


def _scan_rows(
    lowering: FunctionLowering,
    operation: Operation,
    buffers: list[Buffer],
    shape: tuple[int, ...],
    reverse: bool,
) -> None:
    """A vector at a time, whose lanes are scanned in log steps; its last lane is carried on."""
    builder, block = lowering.builder, operation.regions[0].block
    extent = shape[-1]
    lanes = min(extent, LANES)
    rows = 1
    for outer in shape[:-1]:
        rows *= outer

    def chunk_at(
        row: int | ir.Value, column: int | ir.Value, carry: list[ir.Value] | None
    ) -> list[ir.Value]:
        """Scans and stores the chunk; returns what is carried on."""
        if reverse:
            last = extent - lanes
            is_known = isinstance(column, int)
            column = last - column if is_known else builder.sub(I32(last), column)
        with lowering.new_chunk():
            outer = Position.of_flat(builder, Index(row, (0,) * lanes), shape[:-1])
            column_index = Index(column, tuple(range(lanes)))
            position = Position(lanes, (*outer.indices, column_index))
            vectors = [
                as_vector(builder, lowering.chunk(value, position)) for value in operation.operands
            ]
            vectors = _scan_lanes(lowering, block, vectors, lanes, reverse)
            if carry is not None:
                repeated = carry if lanes == 1 else [splat(builder, one, lanes) for one in carry]
                vectors = combined(lowering, block, repeated, vectors)
            for buffer, vector in zip(buffers, vectors, strict=True):
                store_chunk(builder, buffer, position, Lanes.of(buffer.element, lanes, vector))
        if lanes == 1:
            return vectors
        end = I32(0 if reverse else lanes - 1)
        return [builder.extract_element(vector, end) for vector in vectors]

    def row(index: int | ir.Value) -> None:
        carry = chunk_at(index, 0, None)
        if extent > lanes:
            folded(
                builder,
                lanes,
                extent,
                lanes,
                [carry],
                lambda column, state: [chunk_at(index, column, state[0])],
            )

    if rows == 1:
        row(0)
    else:
        with counted(builder, rows) as index:
            row(index)


def _scan_lanes(
    lowering: FunctionLowering,
    block: Block,
    vectors: list[ir.Value],
    lanes: int,
    reverse: bool,
) -> list[ir.Value]:
    builder = lowering.builder
    distance = 1
    while distance < lanes:
        sources = [
            (lane + distance if reverse else lane - distance) % lanes for lane in range(lanes)
        ]
        has_earlier = [
            lane + distance < lanes if reverse else lane >= distance for lane in range(lanes)
        ]
        earlier = [shuffled(builder, vector, sources) for vector in vectors]
        both = combined(lowering, block, earlier, vectors)
        condition = ir.Constant(ir.VectorType(I1, lanes), [I1(int(has)) for has in has_earlier])
        vectors = [
            builder.select(condition, new, old) for new, old in zip(both, vectors, strict=True)
        ]
        distance *= 2
    return vectors


def _scan_across(
    lowering: FunctionLowering,
    operation: Operation,
    buffers: list[Buffer],
    axis: int,
    reverse: bool,
) -> None:
    """Along another axis than the last: lanes are neighbours in the other dimensions."""
    builder, block = lowering.builder, operation.regions[0].block
    shape = buffers[0].shape
    extent = shape[axis]

    def body(others: Position) -> None:
        def step(index: int | ir.Value, carry: list[ir.Value] | None) -> list[ir.Value]:
            if reverse:
                if isinstance(index, int):
                    index = extent - 1 - index
                else:
                    index = builder.sub(I32(extent - 1), index)
            with lowering.new_chunk():
                position = others.with_inserted(axis, Index(index, (0,) * others.lanes))
                vectors = [
                    as_vector(builder, lowering.chunk(value, position))
                    for value in operation.operands
                ]
                if carry is not None:
                    vectors = combined(lowering, block, carry, vectors)
                for buffer, vector in zip(buffers, vectors, strict=True):
                    chunk = Lanes.of(buffer.element, position.lanes, vector)
                    store_chunk(builder, buffer, position, chunk)
            return vectors

        carry = step(0, None)
        if extent > 1:
            folded(builder, 1, extent, 1, [carry], lambda i, state: [step(i, state[0])])

    each_chunk(lowering, shape[:axis] + shape[axis + 1 :], body)
