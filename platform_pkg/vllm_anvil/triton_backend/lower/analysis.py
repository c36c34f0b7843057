# SPDX-License-Identifier: Apache-2.0
"""What is known of a function before it is lowered: order, uses, effects, roots of pointers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from vllm_anvil.triton_backend.ttir.model import (
    Block,
    Function,
    Operation,
    PointerType,
    Region,
    TensorType,
    Value,
    element_of,
)

# Operations that write memory, or must keep their place among those that do.
WRITES = frozenset(
    {"tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.call", "gpu.barrier", "ttg.barrier"}
)

# Lazy operations that read other elements of their operands than the one they make; all others keep
# each lane in its place.
MOVES_ELEMENTS = frozenset({"tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "tt.join"})

# Operations whose result is a view of an operand's pointers.
_SAME_ROOT = frozenset(
    {
        "tt.addptr",
        "tt.splat",
        "tt.broadcast",
        "tt.expand_dims",
        "tt.reshape",
        "tt.trans",
        "tt.bitcast",
        "tt.unsplat",
    }
)


class FunctionAnalysis:
    """Positions, users and effects of a function's operations."""

    def __init__(self, function: Function):
        self.function = function
        # Where an operation begins, counted in textual order, and where what it contains ends.
        self.begin: dict[Operation, int] = {}
        self.end: dict[Operation, int] = {}
        self.users: dict[Value, list[Operation]] = defaultdict(list)
        # How many loops surround an operation, or what defines a value.
        self.depth: dict[Operation, int] = {}
        # By a loop's terminator and a value it yields: the argument that becomes the value.
        self.carried_arguments: dict[tuple[Operation, Value], Value] = {}
        self._last_use: dict[Value, int] = {}
        self._writes: dict[Operation, bool] = {}
        self._argument_sources: dict[Value, list[Value]] = defaultdict(list)
        self._count = 0
        self._visit_region(function.body, 0)
        for value, users in self.users.items():
            self._last_use[value] = max(self.begin[user] for user in users)

    def _visit_region(self, region: Region, depth: int) -> None:
        for block in region.blocks:
            for operation in block.operations:
                self._visit(operation, depth)

    def _visit(self, operation: Operation, depth: int) -> None:
        self._count += 1
        self.begin[operation] = self._count
        self.depth[operation] = depth
        for value in operation.operands:
            self.users[value].append(operation)
        for block, passed in operation.successors:
            for value in passed:
                self.users[value].append(operation)
            self._add_sources(block.arguments, passed)
        is_loop = operation.name in ("scf.for", "scf.while")
        if operation.name == "scf.for":
            carried = operation.regions[0].block.arguments[1:]
            end = terminator(operation.regions[0].block)
            self._add_sources(carried, operation.operands[3:])
            self._add_sources(carried, end.operands)
            for argument, value in zip(carried, end.operands, strict=True):
                self.carried_arguments[end, value] = argument
        elif operation.name == "scf.while":
            before, after = (region.block for region in operation.regions)
            self._add_sources(before.arguments, operation.operands)
            self._add_sources(before.arguments, terminator(after).operands)
            self._add_sources(after.arguments, terminator(before).operands[1:])
        for region in operation.regions:
            self._visit_region(region, depth + is_loop)
        self._writes[operation] = operation.name in WRITES or any(
            self._writes[inner]
            for region in operation.regions
            for block in region.blocks
            for inner in block.operations
        )
        self.end[operation] = self._count

    def _add_sources(self, arguments: Sequence[Value], values: Sequence[Value]) -> None:
        for argument, value in zip(arguments, values, strict=True):
            self._argument_sources[argument].append(value)

    def writes(self, operation: Operation) -> bool:
        """Whether it, or what it contains, may write memory."""
        return self._writes[operation]

    def region_writes(self, region: Region) -> bool:
        return any(self._writes[inner] for block in region.blocks for inner in block.operations)

    def used_after(self, value: Value, operation: Operation) -> bool:
        """Whether an operation after this one (and after what it contains) uses the value."""
        return self._last_use.get(value, 0) > self.end[operation]

    def used_from(self, value: Value, operation: Operation) -> bool:
        """The same, uses inside the operation included."""
        return self._last_use.get(value, 0) > self.begin[operation]

    def root(self, pointer: Value) -> Value | None:
        """The function's argument that a pointer is derived from; None where that isn't clear."""
        roots = self.roots(pointer)
        return next(iter(roots)) if roots is not None and len(roots) == 1 else None

    def roots(self, pointer: Value) -> frozenset[Value] | None:
        """The arguments that a pointer may be derived from; None where it may be any, or none."""
        found: set[Value] = set()
        visited: set[Value] = set()
        waiting = [pointer]
        while waiting:
            value = waiting.pop()
            if value in visited:
                continue
            visited.add(value)
            if value in self.function.arguments:
                found.add(value)
                continue
            sources = self._sources(value)
            if not sources:
                return None
            waiting += sources
        return frozenset(found)

    def _sources(self, pointer: Value) -> list[Value]:
        """The values of which a pointer is one, moved or not; none where that isn't known."""
        operation = pointer.operation
        if operation is None:
            return self._argument_sources[pointer]
        if operation.name in _SAME_ROOT:
            return operation.operands[:1]
        if operation.name == "arith.select":
            return operation.operands[1:]
        if pointer not in operation.results or not operation.regions:
            return []
        number = operation.results.index(pointer)
        if operation.name == "scf.while":
            return [terminator(operation.regions[0].block).operands[1 + number]]
        sources = []
        if operation.name == "scf.for":
            sources.append(operation.operands[3 + number])
        elif operation.name != "scf.if":
            return []
        for region in operation.regions:
            sources.append(terminator(region.block).operands[number])
        return sources


def walk(region: Region) -> Iterator[Operation]:
    """Every operation of a region, with those inside others."""
    for block in region.blocks:
        for operation in block.operations:
            yield operation
            for inner in operation.regions:
                yield from walk(inner)


def argument_accesses(analysis: FunctionAnalysis) -> list[tuple[bool, bool]]:
    """Per argument of the function: whether memory behind it is read, and written.

    An access through a pointer of unknown origin counts for none: mostly, it was loaded, and leads
    to memory that no argument leads to.
    """

    def roots(pointer: Value) -> frozenset[Value]:
        return analysis.roots(pointer) or frozenset()

    reads: set[Value] = set()
    writes: set[Value] = set()
    for operation in walk(analysis.function.body):
        if operation.name == "tt.load":
            reads |= roots(operation.operands[0])
        elif operation.name == "tt.store":
            writes |= roots(operation.operands[0])
        elif operation.name in ("tt.atomic_rmw", "tt.atomic_cas"):
            reads |= roots(operation.operands[0])
            writes |= roots(operation.operands[0])
        elif operation.name == "tt.call":
            for value in operation.operands:
                if isinstance(element_of(value.type), PointerType):
                    reads |= roots(value)
                    writes |= roots(value)
    return [(argument in reads, argument in writes) for argument in analysis.function.arguments]


def is_tile(value: Value) -> bool:
    return isinstance(value.type, TensorType)


def terminator(block: Block) -> Operation:
    return block.operations[-1]
