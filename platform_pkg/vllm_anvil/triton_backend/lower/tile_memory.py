# SPDX-License-Identifier: Apache-2.0
"""Chunks of a tile in a buffer: read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from vllm_anvil.triton_backend.emit.types import memory_type, to_memory, to_register
from vllm_anvil.triton_backend.lower.buffers import Buffer
from vllm_anvil.triton_backend.lower.intrinsics import gather, scatter, shuffled
from vllm_anvil.triton_backend.lower.lanes import Addresses, Lanes, addresses_of_numbers
from vllm_anvil.triton_backend.lower.positions import Index, Position
from vllm_anvil.triton_backend.ttir.model import ElementType, PointerType

if TYPE_CHECKING:
    from vllm_anvil.triton_backend.lower.chunks import Chunk

# Lanes that lie within a window of so many elements are picked from vectors instead of gathered.
WINDOW = 64
I32 = ir.IntType(32)


def chunk_from_memory(
    builder: ir.IRBuilder, element: ElementType, count: int, loaded: ir.Value
) -> Chunk:
    if isinstance(element, PointerType):
        return addresses_of_numbers(builder, element, count, loaded)
    return Lanes.of(element, count, to_register(builder, loaded, element))


def stored_form(builder: ir.IRBuilder, chunk: Chunk, element: ElementType) -> ir.Value:
    """A chunk as memory holds it."""
    if isinstance(chunk, Addresses):
        return chunk.numbers(builder)
    return to_memory(builder, chunk.vector(builder), element)


def element_pointer(builder: ir.IRBuilder, buffer: Buffer, base: int | ir.Value) -> ir.Value:
    if isinstance(base, int):
        if base == 0:
            return buffer.pointer
        base = I32(base)
    return builder.gep(
        buffer.pointer, [base], inbounds=True, source_etype=memory_type(buffer.element)
    )


def load_chunk(builder: ir.IRBuilder, buffer: Buffer, position: Position) -> Chunk:
    flat = position.flat(builder, buffer.shape)
    return load_flat(builder, buffer, flat)


def load_flat(builder: ir.IRBuilder, buffer: Buffer, flat: Index) -> Chunk:
    """The elements of a buffer that are at a flat index each."""
    element, count = buffer.element, len(flat.pattern)
    type_ = memory_type(element)
    if not any(flat.pattern):
        pointer = element_pointer(builder, buffer, flat.base)
        scalar = builder.load(pointer, typ=type_)
        scalar.align = element.bytes
        chunk = chunk_from_memory(builder, element, 1, scalar)
        if isinstance(chunk, Addresses):
            return Addresses.uniform(chunk.element, count, chunk.base)
        return Lanes.uniform(element, count, chunk.scalar)
    if flat.pattern == tuple(range(count)):
        vector = _load_vector(builder, buffer, flat.base, count)
    else:
        vector = _load_pattern(builder, buffer, flat)
    return chunk_from_memory(builder, element, count, vector)


def _load_vector(
    builder: ir.IRBuilder, buffer: Buffer, base: int | ir.Value, count: int
) -> ir.Value:
    pointer = element_pointer(builder, buffer, base)
    vector = builder.load(pointer, typ=ir.VectorType(memory_type(buffer.element), count))
    vector.align = buffer.element.bytes
    return vector


def _load_pattern(builder: ir.IRBuilder, buffer: Buffer, flat: Index) -> ir.Value:
    """Lanes in another order than memory's: from a window of it where that is small."""
    window = 1 << max(flat.pattern).bit_length()
    start: int | ir.Value = flat.base
    pattern = flat.pattern
    if isinstance(start, int):
        inside = start & (window - 1)
        start -= inside
        pattern = tuple(lane | inside for lane in pattern)
        aligned = True
    else:
        # The base has no bit of the pattern's; that it has none below them either is only certain
        # where the pattern's bits are all of the window's.
        used = 0
        for lane in pattern:
            used |= lane
        aligned = used == window - 1
    if window <= WINDOW and aligned:
        vector = _load_vector(builder, buffer, start, window)
        return shuffled(builder, vector, pattern)
    pointer = element_pointer(builder, buffer, flat.base)
    pointers = _pointers(builder, buffer, pointer, flat.pattern)
    return gather(builder, memory_type(buffer.element), pointers)


def store_chunk(builder: ir.IRBuilder, buffer: Buffer, position: Position, chunk: Chunk) -> None:
    """Stores a chunk at its place in a buffer."""
    flat = position.flat(builder, buffer.shape)
    value = stored_form(builder, chunk, buffer.element)
    pointer = element_pointer(builder, buffer, flat.base)
    if flat.pattern == tuple(range(position.lanes)):
        store = builder.store(value, pointer)
        store.align = buffer.element.bytes
    else:
        scatter(builder, value, _pointers(builder, buffer, pointer, flat.pattern))


def _pointers(
    builder: ir.IRBuilder, buffer: Buffer, start: ir.Value, pattern: tuple[int, ...]
) -> ir.Value:
    """Pointers to elements that lie at a pattern behind a pointer."""
    offsets = ir.Constant(ir.VectorType(I32, len(pattern)), [I32(lane) for lane in pattern])
    pointers = builder.gep(start, [offsets], source_etype=memory_type(buffer.element))
    pointers.type = ir.VectorType(ir.PointerType(), len(pattern))
    return pointers
