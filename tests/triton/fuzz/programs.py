# SPDX-License-Identifier: Apache-2.0
"""What a random program is made of: a kernel as a list of typed statements.

`generator` makes programs, `source` writes them as Triton, `reference` runs them with NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTEGERS = SIGNED + UNSIGNED
FLOATS = ("f16", "bf16", "f32", "f64")
FLOATS8 = ("f8e4m3", "f8e5m2")
DTYPES = ("i1", *INTEGERS, *FLOATS, *FLOATS8)


def bits_of(dtype: str) -> int:
    return {"i1": 1, "bf16": 16, "f8e4m3": 8, "f8e5m2": 8}.get(dtype) or int(dtype[1:])


@dataclass(frozen=True)
class Type:
    """A tile, or with the shape () a scalar. The dtype `*x` is a pointer to elements of `x`."""

    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def of(self, dtype: str) -> Type:
        return replace(self, dtype=dtype)


@dataclass(frozen=True, eq=False)
class Var:
    """A variable of the kernel.

    Attributes:
        approximate: whether it holds results that the reference only knows to within an error.
        reads: the pointer arguments through which it was loaded, directly or not.
        limits: the least and the greatest of what integers hold or pointers are away from `base`.
        base: of pointers, the argument that they come from.
        distinct: no two elements are the same.
    """

    name: str
    type: Type
    approximate: bool = False
    reads: frozenset[str] = frozenset()
    limits: tuple[int, int] | None = None
    base: PointerArgument | None = None
    distinct: bool = False

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape


@dataclass(frozen=True)
class Literal:
    """A number written in the source; it takes the dtype of what it is combined with."""

    value: int | float


Operand: TypeAlias = "Var | Literal"


@dataclass(eq=False)
class Assign:
    """`targets = op(operands)`; the ops are those of `source.TEMPLATES`."""

    targets: tuple[Var, ...]
    op: str
    operands: tuple[Operand, ...]
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Rebind:
    """`a, b = c, d`: all at once."""

    targets: tuple[Var, ...]
    sources: tuple[Operand, ...]


@dataclass(eq=False)
class Store:
    pointer: Var
    value: Operand
    mask: Var | None = None


@dataclass(eq=False)
class For:
    """`unrolled`: by Triton (`tl.static_range`)."""

    index: Var
    bounds: tuple[Operand, Operand, Operand]
    body: list[Statement]
    unrolled: bool = False


@dataclass(eq=False)
class While:
    """The condition is what the last of `test` assigns."""

    test: list[Assign]
    body: list[Statement]


@dataclass(eq=False)
class If:
    condition: Var
    then: list[Statement]
    otherwise: list[Statement]


@dataclass(eq=False)
class Return:
    """Ends this program of the grid."""


Statement: TypeAlias = "Assign | Rebind | Store | For | While | If | Return"


@dataclass(eq=False)
class Function:
    """A function that the kernel calls."""

    name: str
    parameters: tuple[Var, ...]
    body: list[Statement]
    results: tuple[Var, ...]
    noinline: bool


@dataclass(eq=False)
class Storage:
    """Memory. `data` says what it holds before: see `inputs`."""

    name: str
    dtype: str
    size: int
    data: str = "zeros"


@dataclass(eq=False)
class PointerArgument:
    """A pointer `offset` elements into a storage.

    Attributes:
        use: `read`; `own`, where each program of the grid has `SPAN` elements to itself; `shared`,
            for atomic operations of all programs; `result`, where each stores a tile of `part`.
    """

    name: str
    storage: Storage
    use: str
    offset: int = 0
    part: int = 0


@dataclass(eq=False)
class ScalarArgument:
    name: str
    dtype: str
    value: int | float | bool


@dataclass(eq=False)
class Program:
    seed: int
    grid: tuple[int, ...]
    storages: list[Storage]
    arguments: list[PointerArgument | ScalarArgument]
    functions: list[Function]
    body: list[Statement]
    on_device: bool = False
    for_least_processor: bool = False

    @property
    def programs(self) -> int:
        return math.prod(self.grid)


# Elements of an `own` storage that belong to one program of the grid, and that a `read` one has.
SPAN = 8192
# Elements before and after what is addressed: what strays there is compared, too.
MARGIN = 64


def blocks_of(statement: Statement) -> list[list[Any]]:
    """The lists of statements inside a statement."""
    match statement:
        case For():
            return [statement.body]
        case While():
            return [statement.test, statement.body]
        case If():
            return [statement.then, statement.otherwise]
    return []


def walk(block: list[Any]) -> Iterator[Statement]:
    for statement in block:
        yield statement
        for inner in blocks_of(statement):
            yield from walk(inner)


def uses_of(statement: Statement) -> list[Operand]:
    """What a statement itself reads, without what is inside it."""
    match statement:
        case Assign():
            return list(statement.operands)
        case Rebind():
            return list(statement.sources)
        case Store():
            operands: list[Operand] = [statement.pointer, statement.value]
            return operands if statement.mask is None else [*operands, statement.mask]
        case For():
            return list(statement.bounds)
        case While():
            return [statement.test[-1].targets[0]] if statement.test else []
        case If():
            return [statement.condition]
    return []
