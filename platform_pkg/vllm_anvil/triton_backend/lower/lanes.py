# SPDX-License-Identifier: Apache-2.0
"""What the lanes of a chunk hold.

Much of a kernel's arithmetic is on indices that are the same in all lanes, or differ by what is
known now: such lanes are kept as a scalar and a pattern, so that contiguous accesses are seen as
such and scalar work stays scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from llvmlite import ir

from vllm_anvil.triton_backend.emit.constants import constant, splat
from vllm_anvil.triton_backend.lower.positions import Index
from vllm_anvil.triton_backend.ttir.model import ElementType, PointerType, ScalarType

I8 = ir.IntType(8)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
POINTER = ir.PointerType()


class Lanes:
    """Numbers: `base + pattern[lane]` where that is known, or a vector.

    With one lane, there is only a scalar. The sum is taken not to overflow where it serves as an
    address; `vector` is exact in any case.
    """

    __slots__ = ("_make", "_vector", "base", "count", "element", "pattern")

    def __init__(
        self,
        element: ElementType,
        count: int,
        base: ir.Value | None = None,
        pattern: tuple[int, ...] | None = None,
        vector: ir.Value | None = None,
        make: Callable[[], ir.Value] | None = None,
    ):
        self.element = element
        self.count = count
        self.base = base
        self.pattern = pattern
        self._vector = vector
        self._make = make

    @staticmethod
    def uniform(element: ElementType, count: int, scalar: ir.Value) -> Lanes:
        return Lanes(element, count, scalar, (0,) * count)

    @staticmethod
    def of(element: ElementType, count: int, value: ir.Value) -> Lanes:
        """Of a vector of `count` lanes; of a scalar where that is 1."""
        if count == 1:
            return Lanes.uniform(element, 1, value)
        return Lanes(element, count, vector=value)

    @staticmethod
    def of_index(index: Index) -> Lanes:
        """The lanes' indices themselves, as i32."""
        base = I32(index.base) if isinstance(index.base, int) else index.base
        return Lanes(ScalarType("i32"), len(index.pattern), base, index.pattern)

    @property
    def is_uniform(self) -> bool:
        return self.pattern is not None and not any(self.pattern)

    @property
    def scalar(self) -> ir.Value:
        assert self.is_uniform and self.base is not None
        return self.base

    def vector(self, builder: ir.IRBuilder) -> ir.Value:
        """All lanes; a scalar where there is one lane."""
        if self.count == 1:
            assert self.base is not None
            return self.base
        if self._vector is None:
            if self._make is not None:
                self._vector = self._make()
            else:
                assert self.base is not None and self.pattern is not None
                vector = splat(builder, self.base, self.count)
                if any(self.pattern):
                    assert isinstance(self.element, ScalarType)
                    pattern = constant(self.element, list(self.pattern))
                    vector = builder.add(vector, pattern)
                self._vector = vector
        return self._vector


@dataclass(frozen=True)
class Addresses:
    """Pointers: base + pattern[lane] + index[lane] * scale, in bytes; `index` may be absent.

    `index` is a vector of i32 (signed) or i64.
    """

    element: PointerType
    count: int
    base: ir.Value
    pattern: tuple[int, ...]
    index: ir.Value | None = None
    scale: int = 1

    @staticmethod
    def uniform(element: PointerType, count: int, pointer: ir.Value) -> Addresses:
        return Addresses(element, count, pointer, (0,) * count)

    @property
    def is_uniform(self) -> bool:
        return self.index is None and not any(self.pattern)

    def is_contiguous(self) -> bool:
        size = self.element.pointee.bytes
        return self.index is None and self.pattern == tuple(range(0, self.count * size, size))

    def advanced(self, builder: ir.IRBuilder, offset: Lanes) -> Addresses:
        """Each moved by an offset that counts elements."""
        size = self.element.pointee.bytes
        if offset.pattern is not None:
            assert offset.base is not None
            base = self.base
            if not (isinstance(offset.base, ir.Constant) and offset.base.constant == 0):
                index = _as_i64(builder, offset.base)
                base = builder.gep(base, [index], source_etype=ir.ArrayType(I8, size))
            pattern = tuple(a + b * size for a, b in zip(self.pattern, offset.pattern, strict=True))
            return replace(self, base=base, pattern=pattern)
        vector = offset.vector(builder)
        if self.index is None:
            return replace(self, index=vector, scale=size)
        total = builder.add(self._bytes(builder), _scaled(builder, vector, size, self.count))
        return replace(self, index=total, scale=1)

    def _bytes(self, builder: ir.IRBuilder) -> ir.Value:
        assert self.index is not None
        return _scaled(builder, self.index, self.scale, self.count)

    def numbers(self, builder: ir.IRBuilder) -> ir.Value:
        """As i64: a vector, or a scalar where there is one lane."""
        base = builder.ptrtoint(self.base, I64)
        if self.count == 1:
            return base
        total = splat(builder, base, self.count)
        if any(self.pattern):
            total = builder.add(total, constant(ScalarType("i64"), list(self.pattern)))
        return total if self.index is None else builder.add(total, self._bytes(builder))

    def pointers(self, builder: ir.IRBuilder) -> ir.Value:
        """As a vector of pointers, in the form that gathers and scatters are made of."""
        type_ = ir.VectorType(POINTER, self.count)
        if self.index is not None and not any(self.pattern):
            source, index = ir.ArrayType(I8, self.scale), self.index
        else:
            source = I8
            index = constant(ScalarType("i64"), list(self.pattern))
            if self.index is not None:
                index = builder.add(index, self._bytes(builder))
        pointers = builder.gep(self.base, [index], source_etype=source)
        pointers.type = type_  # llvmlite takes the type of the base
        return pointers

    def retyped(self, element: PointerType) -> Addresses:
        return replace(self, element=element)


def _as_i64(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    if value.type.width < 64:
        return builder.sext(value, I64)
    return value


def _scaled(builder: ir.IRBuilder, index: ir.Value, scale: int, count: int) -> ir.Value:
    wide = ir.VectorType(I64, count)
    if index.type != wide:
        index = builder.sext(index, wide)
    if scale == 1:
        return index
    return builder.mul(index, constant(ScalarType("i64"), [scale] * count))


def addresses_of_numbers(
    builder: ir.IRBuilder, element: PointerType, count: int, numbers: ir.Value
) -> Addresses:
    """From i64: a vector, or a scalar where there is one lane."""
    if count == 1:
        return Addresses.uniform(element, 1, builder.inttoptr(numbers, POINTER))
    return Addresses(element, count, ir.Constant(POINTER, None), (0,) * count, numbers)
