# SPDX-License-Identifier: Apache-2.0
"""What a TTIR module consists of: functions of regions of blocks of operations on typed values.

Names and structure are MLIR's. A value is compared by identity; a type by what it says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ScalarType:
    """`i1` to `i64`, `index`, `f16`, `bf16`, `f32`, `f64`, or an 8-bit float such as `f8E4M3FN`."""

    name: str

    @property
    def is_float(self) -> bool:
        return self.name[0] == "f" or self.name == "bf16"

    @property
    def is_fp8(self) -> bool:
        return self.name.startswith("f8")

    @property
    def bits(self) -> int:
        if self.name == "index":
            return 64
        if self.is_fp8:
            return 8
        return int(self.name.lstrip("bfi"))

    @property
    def bytes(self) -> int:
        """In memory, where a boolean takes a byte."""
        return max(1, self.bits // 8)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class PointerType:
    """Points to one element; `arith` on it counts in elements, not bytes."""

    pointee: ElementType

    bytes = 8

    def __str__(self) -> str:
        return f"!tt.ptr<{self.pointee}>"


ElementType = ScalarType | PointerType


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tile; its extents are powers of two."""

    shape: tuple[int, ...]
    element: ElementType

    @property
    def size(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def __str__(self) -> str:
        return f"tensor<{''.join(f'{extent}x' for extent in self.shape)}{self.element}>"


Type = ScalarType | PointerType | TensorType


def element_of(type_: Type) -> ElementType:
    """The type of the tile's elements, or the type itself where it is no tile's."""
    return type_.element if isinstance(type_, TensorType) else type_


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the kernel's source; `inlined_at` is where the function around it was called."""

    file: str
    line: int
    inlined_at: Location | None = None

    def __str__(self) -> str:
        text = f"{self.file}:{self.line}"
        return f"{text} (called from {self.inlined_at})" if self.inlined_at else text


@dataclass(eq=False, slots=True)
class Value:
    """What an operation results in, or an argument of a block."""

    name: str
    type: Type
    # The operation that makes it; None for a block's argument.
    operation: Operation | None = None


@dataclass(eq=False, slots=True)
class Operation:
    """One operation.

    `attributes` holds Python values: numbers, booleans, strings, lists; for `arith.constant`,
    `value` is a number or a list of numbers (in row-major order), for a splat the number alone.
    Floats that have no finite decimal form are Python's `inf` and `nan`. Comparisons have
    `predicate` (`"slt"`, `"oeq"`), a reduction or scan `axis` and, the latter, `reverse`.
    """

    name: str
    operands: list[Value]
    results: list[Value]
    attributes: dict[str, Any] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    # Where a terminator may go on, with what it passes.
    successors: list[tuple[Block, list[Value]]] = field(default_factory=list)
    location: Location | None = None

    @property
    def result(self) -> Value:
        (result,) = self.results
        return result


@dataclass(eq=False, slots=True)
class Block:
    label: str
    arguments: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Region:
    """Blocks, the first of which is entered first; a structured operation's has exactly one."""

    blocks: list[Block] = field(default_factory=list)

    @property
    def block(self) -> Block:
        (block,) = self.blocks
        return block


@dataclass(eq=False, slots=True)
class Function:
    name: str
    arguments: list[Value]
    # Per argument, such as {"tt.divisibility": 16}.
    argument_attributes: list[dict[str, Any]]
    result_types: list[Type]
    body: Region
    # The kernel itself, not a function that it calls.
    is_public: bool
    location: Location | None = None


@dataclass(eq=False, slots=True)
class Module:
    functions: list[Function]

    @property
    def kernel(self) -> Function:
        (kernel,) = (function for function in self.functions if function.is_public)
        return kernel
