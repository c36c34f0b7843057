# SPDX-License-Identifier: Apache-2.0
"""Loads and stores of the kernel's own memory."""

from __future__ import annotations

import math

from llvmlite import ir

from vllm_anvil.triton_backend.emit.types import memory_type, to_memory, to_register
from vllm_anvil.triton_backend.lower.analysis import MOVES_ELEMENTS, is_tile
from vllm_anvil.triton_backend.lower.buffers import Buffer
from vllm_anvil.triton_backend.lower.chunks import Chunk, repeated
from vllm_anvil.triton_backend.lower.function import FunctionLowering, MovingTile
from vllm_anvil.triton_backend.lower.intrinsics import (
    any_lane,
    gather,
    masked_load,
    masked_store,
    scatter,
)
from vllm_anvil.triton_backend.lower.lanes import Addresses, Lanes
from vllm_anvil.triton_backend.lower.loops import LANES, each_chunk
from vllm_anvil.triton_backend.lower.positions import Position
from vllm_anvil.triton_backend.lower.registry import eager, lazy
from vllm_anvil.triton_backend.lower.tile_memory import chunk_from_memory, stored_form
from vllm_anvil.triton_backend.ttir.model import (
    ElementType,
    Operation,
    TensorType,
    Value,
    element_of,
)


@lazy("tt.load")
def load_chunk(lowering: FunctionLowering, operation: Operation, position: Position) -> Chunk:
    pointer, *rest = operation.operands
    addresses = lowering.addresses(pointer, position)
    mask = lowering.numbers(rest[0], position) if rest else None
    other = lowering.chunk(rest[1], position) if len(rest) > 1 else None
    return load_lanes(lowering.builder, addresses, mask, other)


@eager("tt.load")
def lower_load(lowering: FunctionLowering, operation: Operation) -> None:
    result = operation.result
    if is_tile(result):
        lowering.lower_lazily(operation)
        if operation.attributes.get("isVolatile"):
            lowering.materialize(result)
        return
    pointer, *rest = (lowering.scalar(value) for value in operation.operands)
    element = result.type
    assert not isinstance(element, TensorType)
    mask = rest[0] if rest else None
    other = rest[1] if len(rest) > 1 else None
    volatile = bool(operation.attributes.get("isVolatile"))
    loaded = load_scalar(lowering.builder, element, pointer, mask, other, volatile)
    lowering.define(result, loaded)


def load_scalar(
    builder: ir.IRBuilder,
    element: ElementType,
    pointer: ir.Value,
    mask: ir.Value | None = None,
    other: ir.Value | None = None,
    volatile: bool = False,
) -> ir.Value:
    """One element; where the mask is false, nothing is read, and `other` or zero the result."""
    type_ = memory_type(element)
    if mask is None:
        if volatile:
            # Another thread may write it at any time: atomic, so that the load is made each time.
            loaded = builder.load_atomic(pointer, "acquire", element.bytes, typ=type_)
        else:
            loaded = builder.load(pointer, typ=type_)
            loaded.align = 1
        return to_register(builder, loaded, element)
    rest = ir.Constant(type_, None) if other is None else to_memory(builder, other, element)
    before = builder.block
    with builder.if_then(mask):
        loaded = builder.load(pointer, typ=type_)
        loaded.align = 1
        inside = builder.block
    merged = builder.phi(type_)
    merged.add_incoming(rest, before)
    merged.add_incoming(loaded, inside)
    return to_register(builder, merged, element)


def load_lanes(
    builder: ir.IRBuilder, addresses: Addresses, mask: Lanes | None, other: Chunk | None
) -> Chunk:
    element, count = addresses.element.pointee, addresses.count
    same_everywhere = all(one is None or one.is_uniform for one in (mask, other))
    if addresses.is_uniform and (mask is None or same_everywhere):
        condition = None if mask is None else mask.scalar
        scalar = load_scalar(builder, element, addresses.base, condition, _scalar(other))
        return repeated(element, scalar, count)
    type_ = ir.VectorType(memory_type(element), count)
    rest = ir.Constant(type_, None) if other is None else stored_form(builder, other, element)
    if addresses.is_uniform:
        assert mask is not None
        active = any_lane(builder, mask.vector(builder))
        scalar = load_scalar(builder, element, addresses.base, active)
        everywhere = stored_form(builder, repeated(element, scalar, count), element)
        vector = builder.select(mask.vector(builder), everywhere, rest)
    elif addresses.is_contiguous():
        if mask is None:
            vector = builder.load(addresses.base, typ=type_)
            vector.align = 1
        else:
            vector = masked_load(builder, type_, addresses.base, mask.vector(builder), rest)
    else:
        condition = None if mask is None else mask.vector(builder)
        vector = gather(builder, type_.element, addresses.pointers(builder), condition, rest)
    return chunk_from_memory(builder, element, count, vector)


def _scalar(chunk: Chunk | None) -> ir.Value | None:
    if chunk is None:
        return None
    return chunk.base


@eager("tt.store")
def lower_store(lowering: FunctionLowering, operation: Operation) -> None:
    pointer, value, *mask = operation.operands
    builder = lowering.builder
    if not isinstance(pointer.type, TensorType):
        element = element_of(value.type)
        condition = lowering.scalar(mask[0]) if mask else None
        store_scalar(builder, element, lowering.scalar(pointer), lowering.scalar(value), condition)
        return
    settle_operands(lowering, operation)

    def body(position: Position) -> None:
        chunk = lowering.chunk(value, position)
        condition = lowering.numbers(mask[0], position) if mask else None
        store_lanes(builder, lowering.addresses(pointer, position), chunk, condition)

    each_chunk(lowering, pointer.type.shape, body)


def store_scalar(
    builder: ir.IRBuilder,
    element: ElementType,
    pointer: ir.Value,
    value: ir.Value,
    mask: ir.Value | None = None,
) -> None:
    stored = to_memory(builder, value, element)
    if mask is None:
        builder.store(stored, pointer).align = 1
        return
    with builder.if_then(mask):
        builder.store(stored, pointer).align = 1


def store_lanes(
    builder: ir.IRBuilder, addresses: Addresses, chunk: Chunk, mask: Lanes | None
) -> None:
    element = addresses.element.pointee
    if addresses.count == 1:
        assert chunk.base is not None
        condition = None if mask is None else mask.scalar
        store_scalar(builder, element, addresses.base, chunk.base, condition)
        return
    stored = stored_form(builder, chunk, element)
    condition = None if mask is None else mask.vector(builder)
    if not addresses.is_contiguous():
        scatter(builder, stored, addresses.pointers(builder), condition)
    elif condition is None:
        builder.store(stored, addresses.base).align = 1
    else:
        masked_store(builder, stored, addresses.base, condition)


def settle_operands(lowering: FunctionLowering, operation: Operation) -> None:
    """Before a write chunk by chunk: makes what would read what an earlier chunk has written.

    That is what reads through a pointer of the same argument, or of unknown origin, unless each
    lane reads just what it writes. Tiles of different arguments are taken not to overlap other
    than element by element, as it is on a GPU, whose threads would race otherwise.
    """
    target = operation.operands[0]
    assert isinstance(target.type, TensorType)
    if math.prod(target.type.shape) <= LANES:
        return
    root = lowering.analysis.root(target)
    visited: set[tuple[Value, bool]] = set()

    def visit(value: Value, in_place: bool) -> None:
        tile = lowering.tiles.get(value)
        if (value, in_place) in visited or tile is None or isinstance(tile, Buffer):
            return
        visited.add((value, in_place))
        if isinstance(tile, MovingTile):
            visit(tile.origin, in_place)
            return
        if tile.name == "tt.load":
            source = tile.operands[0]
            origin = lowering.analysis.root(source)
            overlaps = root is None or origin is None or root is origin
            if overlaps and not (in_place and source is target):
                lowering.materialize(value)
                return
        for operand in tile.operands:
            visit(operand, in_place and tile.name not in MOVES_ELEMENTS)

    for value in operation.operands:
        if is_tile(value):
            visit(value, True)
