# SPDX-License-Identifier: Apache-2.0
"""Chunks of tiles that are made element by element."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from vllm_anvil.triton_backend.lower import elementwise
from vllm_anvil.triton_backend.lower.indexing import indexed
from vllm_anvil.triton_backend.lower.lanes import Addresses, Lanes, addresses_of_numbers
from vllm_anvil.triton_backend.lower.positions import Position
from vllm_anvil.triton_backend.ttir.model import (
    ElementType,
    Operation,
    PointerType,
    Value,
    element_of,
)

if TYPE_CHECKING:
    from vllm_anvil.triton_backend.lower.function import FunctionLowering

Chunk = Lanes | Addresses


def repeated(element: ElementType, scalar: ir.Value, count: int) -> Chunk:
    """A scalar in each lane."""
    if isinstance(element, PointerType):
        return Addresses.uniform(element, count, scalar)
    return Lanes.uniform(element, count, scalar)


def added(builder: ir.IRBuilder, lanes: Lanes, scalar: ir.Value) -> Lanes:
    """Each lane plus a scalar of its type."""
    if lanes.pattern is not None:
        assert lanes.base is not None
        base = builder.add(lanes.base, scalar)
        return Lanes(lanes.element, lanes.count, base, lanes.pattern)
    other = Lanes.uniform(lanes.element, lanes.count, scalar).vector(builder)
    return Lanes.of(lanes.element, lanes.count, builder.add(lanes.vector(builder), other))


def elementwise_chunk(
    lowering: FunctionLowering, operation: Operation, value: Value, position: Position
) -> Chunk:
    """A chunk of an element-wise operation: scalar work where all lanes are the same."""
    builder, count = lowering.builder, position.lanes
    chunks = [lowering.chunk(operand, position) for operand in operation.operands]
    results = elementwise_results(builder, operation, chunks, count)
    for other, result in zip(operation.results, results, strict=True):
        if other is not value:
            lowering.once((other, position.key), lambda result=result: result)  # type: ignore[misc]
    return results[operation.results.index(value)]


def elementwise_results(
    builder: ir.IRBuilder, operation: Operation, chunks: list[Chunk], count: int
) -> list[Chunk]:
    shortcut = indexed(builder, operation, chunks, count)
    if shortcut is not None:
        return [shortcut]
    elements = [element_of(result.type) for result in operation.results]
    if all(chunk.is_uniform for chunk in chunks):
        scalars = [c.base if isinstance(c, Addresses) else c.scalar for c in chunks]
        made = elementwise.emit_all(builder, operation, scalars)
        return [
            repeated(element, scalar, count) for element, scalar in zip(elements, made, strict=True)
        ]
    vectors = [vector_of(builder, chunk) for chunk in chunks]
    made = elementwise.emit_all(builder, operation, vectors)
    return [
        chunk_of(builder, element, count, vector)
        for element, vector in zip(elements, made, strict=True)
    ]


def vector_of(builder: ir.IRBuilder, chunk: Chunk) -> ir.Value:
    """All lanes, of pointers as i64; a scalar where there is one lane."""
    return chunk.numbers(builder) if isinstance(chunk, Addresses) else chunk.vector(builder)


def chunk_of(builder: ir.IRBuilder, element: ElementType, count: int, vector: ir.Value) -> Chunk:
    """Of a vector; pointers are given as i64."""
    if isinstance(element, PointerType):
        return addresses_of_numbers(builder, element, count, vector)
    return Lanes.of(element, count, vector)
