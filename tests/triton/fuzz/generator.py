# SPDX-License-Identifier: Apache-2.0
"""Makes random programs: what is in scope, and how more comes into it.

The families of statements are in `generate_*`; each is a function that takes the `Generator`, adds
statements to its block and variables to its scope, or does nothing where it finds nothing to do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fuzz.programs import (
    FLOATS,
    FLOATS8,
    INTEGERS,
    MARGIN,
    SPAN,
    Assign,
    Function,
    Literal,
    Operand,
    PointerArgument,
    ScalarArgument,
    Statement,
    Storage,
    Type,
    Var,
    bits_of,
)

# Elements of a read or own storage that a program addresses: a view may start some further on.
LIMIT = SPAN - MARGIN
# Elements of a shared storage.
SHARED = 1024
# Stands in `Var.reads` for any argument.
ANY = "*"
ARITHMETIC = (*INTEGERS, *FLOATS)
MOST_ELEMENTS = 1024

Family = Callable[["Generator"], None]


class Generator:
    """The state of making one program."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.storages: list[Storage] = []
        self.arguments: list[PointerArgument | ScalarArgument] = []
        self.functions: list[Function] = []
        # Statements at the kernel's start, and the block that is being written.
        self.prologue: list[Statement] = []
        self.block: list[Statement] = []
        self.scope: list[Var] = []
        # Pointers through which loads and stores go: each argument's, moved to the program's part.
        self.bases: dict[PointerArgument, Var] = {}
        self.in_function = False
        self.depth = 0
        self._names = 0
        self.grid = self._grid()
        self.shapes = [self._shape() for _ in range(3)]
        favourites = self.random.sample(ARITHMETIC, 3)
        self.dtypes = ["i32", "f32", *favourites]
        self._program: Var | None = None

    def _grid(self) -> tuple[int, ...]:
        return self.random.choice([(1,), (1,), (2,), (3,), (5,), (2, 2), (1, 3), (2, 1, 2)])

    def _shape(self) -> tuple[int, ...]:
        rank = self.random.choice([1, 1, 1, 2, 2, 2, 2, 3])
        if rank == 1:
            return (self.random.choice([1, 2, 4, 8, 16, 16, 32, 64, 64, 128, 256, 1024, 4096]),)
        while True:
            extents = [1, 2, 4, 8, 16, 32, 64] if rank == 2 else [1, 2, 4, 8, 16]
            shape = tuple(self.random.choice(extents) for _ in range(rank))
            if Type("", shape).size <= 512:
                return shape

    # Chances

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def shape(self) -> tuple[int, ...]:
        return self.random.choice(self.shapes)

    def dtype(self) -> str:
        return self.random.choice(self.dtypes) if self.chance(0.8) else self.any_of(ARITHMETIC)

    def any_of(self, items: Collection[Any]) -> Any:
        return self.random.choice(list(items))

    def literal(self, dtype: str) -> Literal:
        if dtype in FLOATS:
            return Literal(self.any_of([0.5, -0.25, 1.0, 2.0, 3.0, -1.5, 0.125, 10.0]))
        if dtype == "i1":
            return Literal(self.chance(0.5))
        numbers = [0, 1, 2, 3, 5, 7, 8, 16, 64, 100]
        if dtype[0] == "i":
            numbers += [-1, -2, -3, -7, -128]
        if bits_of(dtype) >= 16:
            numbers += [255, 1000, 12345]
        if bits_of(dtype) >= 32:
            numbers += [2**31 - 1, 65536, 123456789]
        return Literal(self.any_of(numbers))

    # Variables

    def name(self) -> str:
        self._names += 1
        return f"v{self._names}"

    def emit(self, op: str, operands: Sequence[Operand], type_: Type, **facts: Any) -> Var:
        """Adds `result = op(operands)`; `facts` are the op's attributes and those of the `Var`."""
        return self.emit_all(op, operands, [type_], **facts)[0]

    def emit_all(
        self, op: str, operands: Sequence[Operand], types: Sequence[Type], **facts: Any
    ) -> tuple[Var, ...]:
        named = {name: facts.pop(name) for name in ("limits", "base", "distinct") if name in facts}
        used = [operand for operand in operands if isinstance(operand, Var)]
        reads = frozenset().union(*(operand.reads for operand in used))
        approximate = facts.pop("approximate", False) or any(one.approximate for one in used)
        targets = tuple(Var(self.name(), type_, approximate, reads, **named) for type_ in types)
        self.block.append(Assign(targets, op, tuple(operands), facts))
        self.scope.extend(targets)
        return targets

    def read_through(self, loaded: Var, argument: PointerArgument) -> Var:
        """The variable that was assigned last, with the argument among what it was read through."""
        known = replace(loaded, reads=loaded.reads | {argument.name})
        assign = self.block[-1]
        assert isinstance(assign, Assign) and assign.targets == (loaded,)
        assign.targets = (known,)
        self.scope[self.scope.index(loaded)] = known
        return known

    def pick(
        self,
        dtypes: Collection[str] | None = None,
        shape: tuple[int, ...] | None = None,
        accept: Callable[[Var], bool] = lambda var: True,
        approximate: bool = False,
    ) -> Var | None:
        """A variable in scope, rather a recent one; never a pointer."""
        found = [
            var
            for var in self.scope
            if (var.dtype in dtypes if dtypes is not None else not var.dtype.startswith("*"))
            and (shape is None or var.shape == shape)
            and (approximate or not var.approximate)
            and accept(var)
        ]
        if not found:
            return None
        if self.chance(0.6):
            found = found[-4:]
        return self.random.choice(found)

    def some(self, dtypes: Collection[str] | None = None, shape: Any = None) -> Var:
        """A variable of one of the dtypes and that shape (any, unless given), made if need be."""
        if self.chance(0.8):
            found = self.pick(dtypes, shape)
            if found is not None:
                return found
        if dtypes is None:
            dtype = self.dtype()
        else:
            liked = [dtype for dtype in self.dtypes if dtype in dtypes]
            dtype = self.any_of(liked or dtypes)
        return self.make(Type(dtype, self.shape() if shape is None else shape))

    def some_tile(self, dtypes: Collection[str] | None = None, rank: int | None = None) -> Var:
        """The same with at least one dimension, or as many as said."""

        def fits(var: Var) -> bool:
            return len(var.shape) == rank if rank else len(var.shape) > 0

        if self.chance(0.85):
            found = self.pick(dtypes, accept=fits)
            if found is not None:
                return found
        shapes = [s for s in self.shapes if len(s) == rank] if rank else self.shapes
        shape = self.any_of(shapes) if shapes else (8,) * (rank or 1)
        return self.some(dtypes, shape)

    def make(self, type_: Type) -> Var:
        """A new variable: loaded, converted or constant."""
        from fuzz.generate_memory import load

        if type_.dtype in ("f8e4m3", "f8e5m2") and self.chance(0.5):
            source = self.some(("f32", "f16", "bf16"), type_.shape)
            return self.emit("cast", [source], type_)
        if self.chance(0.6):
            loaded = load(self, type_)
            if loaded is not None:
                return loaded
        if type_.dtype == "i1":
            left = self.some(ARITHMETIC, type_.shape)
            op = self.any_of(["lt", "ge", "eq", "ne", "gt", "le"])
            return self.emit(op, [left, self.literal(left.dtype)], type_)
        if type_.dtype in ("f8e4m3", "f8e5m2"):
            source = self.some(("f32", "f16", "bf16"), type_.shape)
            return self.emit("cast", [source], type_)
        if self.chance(0.5):
            source = self.pick((*INTEGERS, "i1"), type_.shape)
            if source is not None and source.dtype != type_.dtype:
                return self.emit("cast", [source], type_)
        if not type_.shape and self.chance(0.5) and not self.in_function:
            found = self.scalar_argument(type_.dtype)
            if found is not None:
                return found
        return self.emit("full", [], type_, value=self.literal(type_.dtype).value)

    # Arguments

    def program_number(self) -> Var:
        """The program's number in the grid, counted through its dimensions; made once."""
        if self._program is not None:
            return self._program
        with self.at_start():
            scalar = Type("i32")
            number = None
            for axis in reversed(range(len(self.grid))):
                place = self.emit("program_id", [], scalar, axis=axis)
                if number is not None:
                    extent = self.emit("num_programs", [], scalar, axis=axis)
                    number = self.emit("mul", [number, extent], scalar)
                    place = self.emit("add", [number, place], scalar)
                number = place
            assert number is not None
            self._program = number
        return number

    @contextmanager
    def at_start(self) -> Iterator[None]:
        """What is added goes to the kernel's start, and is in scope everywhere."""
        block, self.block = self.block, self.prologue
        scope, self.scope = self.scope, []
        yield
        self.block, self.scope = block, [*self.scope, *scope]

    def scalar_argument(self, dtype: str) -> Var | None:
        values: dict[str, list[int | float | bool]] = {
            "i1": [True, False],
            "i32": [0, 1, 2, 3, 16, 48, 1000, -1, -16],
            "i64": [0, 1, 5, 16, 64, 2**40, -(2**33)],
            "u32": [0, 1, 7, 32, 2**32 - 16],
            "u64": [1, 2, 2**63 + 5],
            "f32": [1.0, 0.5, -2.0, 16.0],
            "f64": [1.0, 0.1, -3.5],
        }
        if dtype not in values or self.in_function:
            return None
        argument = ScalarArgument(f"n{len(self.arguments)}", dtype, self.any_of(values[dtype]))
        self.arguments.append(argument)
        value = argument.value
        limits = (int(value), int(value)) if dtype == "i32" else None
        with self.at_start():
            return self.emit("argument", [], Type(dtype), name=argument.name, limits=limits)

    def storage(self, dtype: str, use: str) -> PointerArgument | None:
        """A new storage with one argument that points to it, sometimes two."""
        if self.in_function or len(self.storages) >= 9:
            return None
        programs = 1
        for extent in self.grid:
            programs *= extent
        size = {"read": SPAN, "own": programs * SPAN, "shared": SHARED}[use] + 2 * MARGIN
        number = len(self.storages)
        data = self.any_of(["small", "wide", "wide", "special"])
        if use == "shared":
            data = "small"
        storage = Storage(f"s{number}", dtype, size, data)
        self.storages.append(storage)
        first = PointerArgument(f"p{number}", storage, use, MARGIN)
        views = [first]
        if use != "shared" and self.chance(0.15):
            offset = MARGIN + self.any_of([0, 1, 4, 16, 32])
            views.append(PointerArgument(f"p{number}b", storage, use, offset))
        for view in views:
            self.arguments.append(view)
            self.bases[view] = self._base(view)
        return first

    def _base(self, argument: PointerArgument) -> Var:
        pointer = Type(f"*{argument.storage.dtype}")
        plain = Var(argument.name, pointer, base=argument, limits=(0, 0))
        if argument.use != "own":
            return plain
        number = self.program_number()
        with self.at_start():
            scale = Literal(SPAN)
            start = self.emit("mul", [number, scale], Type("i32"))
            moved = self.emit("add", [plain, start], pointer, base=argument, limits=(0, 0))
        return moved


def is_float(dtype: str) -> bool:
    return dtype in FLOATS or dtype in FLOATS8
