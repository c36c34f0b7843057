# SPDX-License-Identifier: Apache-2.0
"""Tiles that are passed on to where their old values may still be in use."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from vllm_anvil.triton_backend.lower.analysis import MOVES_ELEMENTS
from vllm_anvil.triton_backend.lower.buffers import Buffer
from vllm_anvil.triton_backend.lower.function import FunctionLowering, MovingTile
from vllm_anvil.triton_backend.lower.intrinsics import call_intrinsic
from vllm_anvil.triton_backend.ttir.model import TensorType, Value

I1 = ir.IntType(1)
I64 = ir.IntType(64)


def carry_tiles(
    lowering: FunctionLowering, targets: Sequence[Buffer], values: Sequence[Value]
) -> None:
    """Stores each value to its buffer, as if all at once: values may be made of old contents."""
    old = {target.pointer for target in targets}
    later: list[tuple[Buffer, Buffer]] = []
    in_place: list[tuple[Buffer, Value]] = []
    for target, value in zip(targets, values, strict=True):
        tile = lowering.tiles[value]
        if isinstance(tile, Buffer):
            if tile.pointer is target.pointer:
                continue
            if tile.pointer not in old:
                later.append((target, tile))
                continue
        read = _buffers_read(lowering, value)
        others = {pointer for pointer, same_place in read if pointer in old and not same_place}
        others |= {pointer for pointer, _ in read if pointer in old} - {target.pointer}
        if others:
            assert isinstance(value.type, TensorType)
            copy = lowering.buffers.take(value.type)
            lowering.store_tile(value, copy)
            later.append((target, copy))
        else:
            in_place.append((target, value))
    for target, value in in_place:
        lowering.store_tile(value, target)
    for target, copy in later:
        copy_buffer(lowering.builder, target, copy)


def _buffers_read(lowering: FunctionLowering, value: Value) -> set[tuple[ir.Value, bool]]:
    """The buffers that making a tile reads, each with whether only element by element."""
    found: set[tuple[ir.Value, bool]] = set()
    visited: set[tuple[Value, bool]] = set()

    def visit(value: Value, same_place: bool) -> None:
        tile = lowering.tiles.get(value)
        if tile is None or (value, same_place) in visited:
            return
        visited.add((value, same_place))
        if isinstance(tile, Buffer):
            found.add((tile.pointer, same_place))
        elif isinstance(tile, MovingTile):
            visit(tile.origin, same_place)
        else:
            for operand in tile.operands:
                visit(operand, same_place and tile.name not in MOVES_ELEMENTS)

    visit(value, True)
    return found


def copy_buffer(builder: ir.IRBuilder, target: Buffer, source: Buffer) -> None:
    size = source.element.bytes
    for extent in source.shape:
        size *= extent
    call_intrinsic(
        builder,
        "llvm.memcpy.p0.p0.i64",
        ir.VoidType(),
        [target.pointer, source.pointer, I64(size), I1(0)],
    )
