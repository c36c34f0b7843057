# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on indices and pointers that keeps the pattern of their lanes known."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from llvmlite import ir

from vllm_anvil.triton_backend.emit.types import llvm_type
from vllm_anvil.triton_backend.lower.lanes import Addresses, Lanes, addresses_of_numbers
from vllm_anvil.triton_backend.ttir.model import (
    Operation,
    PointerType,
    element_of,
)

if TYPE_CHECKING:
    from vllm_anvil.triton_backend.lower.chunks import Chunk

Shortcut = Callable[[ir.IRBuilder, Operation, "list[Chunk]", int], "Chunk | None"]


def indexed(
    builder: ir.IRBuilder, operation: Operation, chunks: list[Chunk], count: int
) -> Chunk | None:
    """The result of an operation whose lanes follow a pattern; None where that isn't so."""
    shortcut = _SHORTCUTS.get(operation.name)
    return shortcut(builder, operation, chunks, count) if shortcut else None


def _patterned(chunks: list[Chunk]) -> list[Lanes] | None:
    lanes = [chunk for chunk in chunks if isinstance(chunk, Lanes) and chunk.pattern is not None]
    return lanes if len(lanes) == len(chunks) and any(any(c.pattern or ()) for c in lanes) else None


def _summed(sign: int) -> Shortcut:
    """The sum, or with -1 the difference, of two."""

    def shortcut(
        builder: ir.IRBuilder, operation: Operation, chunks: list[Chunk], count: int
    ) -> Chunk | None:
        lanes = _patterned(chunks)
        if lanes is None:
            return None
        a, b = lanes
        assert a.pattern is not None and b.pattern is not None
        pattern = tuple(x + sign * y for x, y in zip(a.pattern, b.pattern, strict=True))
        base = (builder.add if sign > 0 else builder.sub)(a.base, b.base)
        return Lanes(element_of(operation.result.type), count, base, pattern)

    return shortcut


def _multiply(
    builder: ir.IRBuilder, operation: Operation, chunks: list[Chunk], count: int
) -> Chunk | None:
    """By a constant: the pattern is known only then."""
    lanes = _patterned(chunks)
    if lanes is None:
        return None
    for factor, other in (lanes, reversed(lanes)):
        number = _known(factor)
        if number is not None and other.pattern is not None:
            pattern = tuple(number * lane for lane in other.pattern)
            element = element_of(operation.result.type)
            return Lanes(element, count, builder.mul(other.base, factor.base), pattern)
    return None


def _known(lanes: Lanes) -> int | None:
    """The number that all lanes are, as a signed one."""
    if not lanes.is_uniform or not isinstance(lanes.base, ir.Constant):
        return None
    number, width = lanes.base.constant, lanes.base.type.width
    if not isinstance(number, int):
        return None
    return number - (1 << width) if number >> (width - 1) and number > 0 else number


def _extend(
    builder: ir.IRBuilder, operation: Operation, chunks: list[Chunk], count: int
) -> Chunk | None:
    """A wider index: as an address it is taken not to have overflowed, as a value it is exact."""
    lanes = _patterned(chunks)
    if lanes is None:
        return None
    (source,) = lanes
    element = element_of(operation.result.type)
    assert source.base is not None
    signed = operation.name != "arith.extui"
    extend = builder.sext if signed else builder.zext
    type_ = llvm_type(element)
    if source.base.type.width >= type_.width:
        return source if source.base.type == type_ else None

    def exact() -> ir.Value:
        return extend(source.vector(builder), ir.VectorType(type_, count))

    return Lanes(element, count, extend(source.base, type_), source.pattern, make=exact)


def _advance(
    builder: ir.IRBuilder, operation: Operation, chunks: list[Chunk], count: int
) -> Chunk | None:
    pointers, offset = chunks
    assert isinstance(pointers, Addresses) and isinstance(offset, Lanes)
    return pointers.advanced(builder, offset)


def _bitcast(
    builder: ir.IRBuilder, operation: Operation, chunks: list[Chunk], count: int
) -> Chunk | None:
    element = element_of(operation.result.type)
    (source,) = chunks
    if isinstance(source, Addresses) and isinstance(element, PointerType):
        return source.retyped(element)
    return None


def _pointer_of_number(
    builder: ir.IRBuilder, operation: Operation, chunks: list[Chunk], count: int
) -> Chunk | None:
    element = element_of(operation.result.type)
    (source,) = chunks
    assert isinstance(element, PointerType) and isinstance(source, Lanes)
    if source.is_uniform:
        pointer = builder.inttoptr(source.scalar, ir.PointerType())
        return Addresses.uniform(element, count, pointer)
    return addresses_of_numbers(builder, element, count, source.vector(builder))


def _number_of_pointer(
    builder: ir.IRBuilder, operation: Operation, chunks: list[Chunk], count: int
) -> Chunk | None:
    element = element_of(operation.result.type)
    (source,) = chunks
    assert isinstance(source, Addresses)
    if source.index is None:
        return Lanes(element, count, builder.ptrtoint(source.base, ir.IntType(64)), source.pattern)
    return Lanes.of(element, count, source.numbers(builder))


_SHORTCUTS: dict[str, Shortcut] = {
    "arith.addi": _summed(1),
    "arith.subi": _summed(-1),
    "arith.muli": _multiply,
    "arith.extsi": _extend,
    "arith.extui": _extend,
    "arith.index_cast": _extend,
    "tt.addptr": _advance,
    "tt.bitcast": _bitcast,
    "tt.int_to_ptr": _pointer_of_number,
    "tt.ptr_to_int": _number_of_pointer,
}
