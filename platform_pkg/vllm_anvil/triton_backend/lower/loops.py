# SPDX-License-Identifier: Apache-2.0
"""Loops over the chunks of a tile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from llvmlite import ir

from vllm_anvil.triton_backend.lower.positions import Index, Position

if TYPE_CHECKING:
    from vllm_anvil.triton_backend.lower.function import FunctionLowering

# Lanes of a vector, whatever they hold: 32-bit ones fill an AVX-512 register, and wider or narrower
# ones are LLVM's to split or pad.
LANES = 16
# So many chunks are written out one after the other rather than looped over.
UNROLLED_CHUNKS = 4

I32 = ir.IntType(32)


@contextmanager
def counted(builder: ir.IRBuilder, stop: int, step: int = 1) -> Iterator[ir.Value]:
    """A loop whose index goes from 0 to `stop` (at least one step), as an i32."""
    before = builder.block
    body = builder.append_basic_block("loop")
    builder.branch(body)
    builder.position_at_end(body)
    index = builder.phi(I32)
    index.add_incoming(I32(0), before)
    yield index
    following = builder.add(index, I32(step), flags=("nuw", "nsw"))
    index.add_incoming(following, builder.block)
    again = builder.icmp_unsigned("<", following, I32(stop))
    after = builder.append_basic_block("loop_end")
    builder.cbranch(again, body, after)
    builder.position_at_end(after)


def lanes_for(size: int) -> int:
    return min(size, LANES)


def each_chunk(
    lowering: FunctionLowering, shape: Sequence[int], body: Callable[[Position], None]
) -> None:
    """Calls `body` with the position of each chunk, row by row."""
    size = math.prod(shape)
    lanes = lanes_for(size)
    last = shape[-1] if shape else 1
    builder = lowering.builder

    def at(base: int | ir.Value) -> None:
        with lowering.new_chunk():
            flat = Index(base, tuple(range(lanes)))
            body(Position.of_flat(builder, flat, shape))

    def row(row_base: int | ir.Value | None) -> None:
        """The chunks of one row, whose first element is at `row_base`."""

        def within(column: int | ir.Value) -> None:
            with lowering.new_chunk():
                position = Position(lanes, (Index(column, tuple(range(lanes))),))
                if row_base is not None:
                    rows = Index(row_base, (0,) * lanes)
                    outer = Position.of_flat(builder, rows, shape[:-1])
                    position = Position(lanes, (*outer.indices, *position.indices))
                body(position)

        if last // lanes <= UNROLLED_CHUNKS:
            for column in range(0, last, lanes):
                within(column)
        else:
            with counted(builder, last, lanes) as index:
                within(index)

    if size // lanes <= UNROLLED_CHUNKS:
        for base in range(0, size, lanes):
            at(base)
    elif len(shape) == 1:
        row(None)
    elif last >= lanes:
        with counted(builder, size // last) as index:
            row(index)
    else:
        with counted(builder, size, lanes) as index:
            at(index)
