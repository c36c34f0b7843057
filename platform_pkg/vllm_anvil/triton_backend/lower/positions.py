# SPDX-License-Identifier: Apache-2.0
"""Where in a tile the lanes of a vector are.

A chunk is as many consecutive elements (in row-major order) as a vector has lanes. Along each
dimension its lanes are at `base + pattern[lane]`: the base is known when the program runs, the
pattern now. Extents and lane counts are powers of two and chunks are aligned, so that a base and
its pattern have no bit in common, and every change of shape moves bits, never carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

I32 = ir.IntType(32)


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """The lanes' indices along one dimension, or in a whole tile counted row by row."""

    base: int | ir.Value
    pattern: tuple[int, ...]

    @property
    def key(self) -> tuple[object, tuple[int, ...]]:
        base = self.base if isinstance(self.base, int) else id(self.base)
        return base, self.pattern

    def shifted_left(self, builder: ir.IRBuilder, bits: int) -> Index:
        if not bits:
            return self
        base = self.base
        if isinstance(base, int):
            base <<= bits
        else:
            base = builder.shl(base, I32(bits))
        return Index(base, tuple(lane << bits for lane in self.pattern))

    def field(self, builder: ir.IRBuilder, low: int, width: int, is_top: bool) -> Index:
        """Bits `low` to `low + width` of the indices; `is_top` where there are none above."""
        mask = (1 << width) - 1
        pattern = tuple((lane >> low) & mask for lane in self.pattern)
        base = self.base
        if isinstance(base, int):
            return Index((base >> low) & mask, pattern)
        if width == 0:
            return Index(0, pattern)
        if low:
            base = builder.lshr(base, I32(low))
        if not is_top:
            base = builder.and_(base, I32(mask))
        return Index(base, pattern)

    def combined(self, builder: ir.IRBuilder, other: Index) -> Index:
        """The sum of two that have no bit in common."""
        pattern = tuple(a | b for a, b in zip(self.pattern, other.pattern, strict=True))
        if isinstance(self.base, int) and isinstance(other.base, int):
            return Index(self.base | other.base, pattern)
        if isinstance(self.base, int):
            return Index(_or(builder, other.base, self.base), pattern)
        return Index(_or(builder, self.base, other.base), pattern)


def _or(builder: ir.IRBuilder, value: ir.Value, other: int | ir.Value) -> ir.Value:
    if isinstance(other, int):
        return builder.or_(value, I32(other)) if other else value
    return builder.or_(value, other)


@dataclass(frozen=True, slots=True, eq=False)
class Position:
    """One index per dimension."""

    lanes: int
    indices: tuple[Index, ...]

    @property
    def key(self) -> tuple[object, ...]:
        return tuple(index.key for index in self.indices)

    @staticmethod
    def of_flat(builder: ir.IRBuilder, flat: Index, shape: Sequence[int]) -> Position:
        """Where in a tile of `shape` the elements are that `flat` counts."""
        indices: list[Index] = []
        low = 0
        for dimension in reversed(range(len(shape))):
            width = shape[dimension].bit_length() - 1
            indices.append(flat.field(builder, low, width, is_top=dimension == 0))
            low += width
        return Position(len(flat.pattern), tuple(reversed(indices)))

    def flat(self, builder: ir.IRBuilder, shape: Sequence[int]) -> Index:
        """The same, counted row by row."""
        total = Index(0, (0,) * self.lanes)
        low = 0
        for index, extent in zip(reversed(self.indices), reversed(shape), strict=True):
            total = total.combined(builder, index.shifted_left(builder, low))
            low += extent.bit_length() - 1
        return total

    def zero(self) -> Index:
        return Index(0, (0,) * self.lanes)

    def without(self, axis: int) -> Position:
        return Position(self.lanes, self.indices[:axis] + self.indices[axis + 1 :])

    def with_inserted(self, axis: int, index: Index) -> Position:
        return Position(self.lanes, (*self.indices[:axis], index, *self.indices[axis:]))

    def with_index(self, axis: int, index: Index) -> Position:
        return self.without(axis).with_inserted(axis, index)

    def broadcast_from(self, shape: Sequence[int]) -> Position:
        """Where to read in a tile whose extents are 1 where they are repeated."""
        indices = tuple(
            self.zero() if extent == 1 else index
            for index, extent in zip(self.indices, shape, strict=True)
        )
        return Position(self.lanes, indices)

    def permuted(self, order: Sequence[int]) -> Position:
        """Where to read in a tile whose dimension `order[i]` became dimension `i`."""
        indices: list[Index] = [self.zero()] * len(order)
        for target, source in enumerate(order):
            indices[source] = self.indices[target]
        return Position(self.lanes, tuple(indices))
