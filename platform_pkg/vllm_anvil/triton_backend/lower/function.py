# SPDX-License-Identifier: Apache-2.0
"""Lowers one function: what stands where, what waits until it is asked for, what goes to memory.

Scalars are computed where they stand. Tiles are not: an operation on tiles is remembered, and a
chunk of its result made when a consumer (a store, a reduction, the next iteration) asks for it, so
that chains of element-wise work run in one loop without tiles in between. A tile goes to memory
(`materialize`)
- when what it reads may be written before its last use,
- when making it again would cost more than reading it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from llvmlite import ir

from vllm_anvil.triton_backend.emit.constants import constant
from vllm_anvil.triton_backend.emit.target import HostCpu
from vllm_anvil.triton_backend.emit.types import llvm_type
from vllm_anvil.triton_backend.errors import UnsupportedKernel
from vllm_anvil.triton_backend.lower import elementwise
from vllm_anvil.triton_backend.lower.analysis import FunctionAnalysis, is_tile
from vllm_anvil.triton_backend.lower.buffers import Buffer, BufferAllocator, stack_memory
from vllm_anvil.triton_backend.lower.chunks import Chunk, added, elementwise_chunk, repeated
from vllm_anvil.triton_backend.lower.lanes import Addresses, Lanes
from vllm_anvil.triton_backend.lower.loops import each_chunk
from vllm_anvil.triton_backend.lower.positions import Position
from vllm_anvil.triton_backend.lower.registry import EAGER, LAZY
from vllm_anvil.triton_backend.lower.tile_memory import load_chunk, store_chunk
from vllm_anvil.triton_backend.ttir.model import (
    Block,
    Function,
    Operation,
    TensorType,
    Value,
    element_of,
)

T = TypeVar("T")

# From what cost on a value that is wanted twice is kept instead of made again; a plain arithmetic
# operation costs 1 (see elementwise.cost), reading a chunk back about as much.
EXPENSIVE = 6
LOAD_COST = 2


@dataclass(frozen=True)
class MovingTile:
    """A tile that a loop moves by a scalar each time: what it was, and how far it is now.

    The distance counts elements where the tile's are pointers.
    """

    origin: Value
    distance: ir.Value


Tile = Buffer | Operation | MovingTile


@dataclass(frozen=True)
class Program:
    """What a program of the grid is given, beside the kernel's arguments."""

    launch: ir.Value
    identifiers: tuple[ir.Value, ir.Value, ir.Value]
    scratch: ir.Value


class FunctionLowering:
    """The state of lowering one function. Rules (see registry.py) work on it."""

    def __init__(
        self,
        function: Function,
        llvm_function: ir.Function,
        program: Program,
        entry: ir.IRBuilder,
        cpu: HostCpu,
        callees: dict[str, Any],
        result_places: list[ir.Value],
    ):
        self.function = function
        self.analysis = FunctionAnalysis(function)
        self.llvm_function = llvm_function
        self.module = llvm_function.module
        self.program = program
        self.cpu = cpu
        self.callees = callees
        # Where what the function returns goes, for functions that are called.
        self.result_places = result_places
        self.buffers = BufferAllocator(entry, program.scratch)
        self.builder = ir.IRBuilder(llvm_function.append_basic_block("body"))
        self._entry = entry
        self._line: ir.Value | None = None
        self.scalars: dict[Value, ir.Value] = {}
        self.tiles: dict[Value, Tile] = {}
        # The LLVM blocks of the function's own, and what their arguments are.
        self.blocks: dict[Block, ir.Block] = {}
        self.block_arguments: dict[Block, list[ir.PhiInstr | Buffer]] = {}
        # Where a failed assertion goes on; made when the first needs it.
        self._failure: ir.Block | None = None
        self._memo: dict[Any, Any] = {}
        self._cost: dict[Value, int] = {}
        # Lazy tiles whose making reads memory of the kernel's, in order.
        self._pending: dict[Value, None] = {}
        self._sinks: dict[Value, frozenset[Operation]] = {}

    # Operations

    def lower_function(self) -> None:
        """Lowers the whole function; its arguments are defined."""
        first, *others = self.function.body.blocks
        for block in others:
            self.blocks[block] = self.llvm_function.append_basic_block(block.label)
            at_start = ir.IRBuilder(self.blocks[block])
            arguments: list[ir.PhiInstr | Buffer] = []
            for argument in block.arguments:
                if isinstance(argument.type, TensorType):
                    arguments.append(self.buffers.take(argument.type))
                else:
                    arguments.append(at_start.phi(llvm_type(argument.type)))
                self.define(argument, arguments[-1])
            self.block_arguments[block] = arguments
        for block in (first, *others):
            if block is not first:
                self.builder.position_at_end(self.blocks[block])
            before = dict(self.tiles)
            self.lower_operations(block.operations)
            # What this block put into memory is not there on a way around it.
            self.tiles.update(before)
        self._entry.branch(self.llvm_function.blocks[1])

    def lower_operations(self, operations: list[Operation]) -> None:
        for operation in operations:
            self.lower(operation)

    def lower(self, operation: Operation) -> None:
        with self.naming(operation):
            if self.analysis.writes(operation):
                self.settle(operation)
            rule = EAGER.get(operation.name)
            if rule is not None:
                rule(self, operation)
            elif operation.results and is_tile(operation.result):
                self.lower_lazily(operation)
            elif elementwise.is_elementwise(operation.name):
                operands = [self.scalar(value) for value in operation.operands]
                results = elementwise.emit_all(self.builder, operation, operands)
                self.scalars.update(zip(operation.results, results, strict=True))
            else:
                raise UnsupportedKernel("not supported", operation.name, operation.location)

    @contextmanager
    def naming(self, operation: Operation) -> Iterator[None]:
        """Errors that do not say where they come from are said to come from the operation."""
        try:
            yield
        except UnsupportedKernel as error:
            if not error.operation:
                error.operation, error.location = operation.name, operation.location
            raise

    def lower_lazily(self, operation: Operation) -> None:
        if not is_lazy(operation):
            raise UnsupportedKernel("not supported on tiles", operation.name, operation.location)
        is_load = operation.name == "tt.load"
        cost = sum(self.cost_of(value) for value in operation.operands)
        if is_load:
            cost += LOAD_COST
        elif operation.name not in LAZY:
            cost += elementwise.cost(operation)
        reads = is_load or any(value in self._pending for value in operation.operands)
        for result in operation.results:
            self.tiles[result] = operation
            self._cost[result] = min(cost, 1 << 20)
            if reads:
                self._pending[result] = None
            if self._is_worth_keeping(result):
                self.materialize(result)

    def cost_of(self, value: Value) -> int:
        """What making a chunk of a value costs, in plain arithmetic operations on a vector."""
        tile = self.tiles.get(value)
        if isinstance(tile, MovingTile):
            return self.cost_of(tile.origin)
        return self._cost[value] if isinstance(tile, Operation) else 0

    def remember(self, operation: Operation) -> None:
        """Has an operation that costs nothing made again wherever it is used."""
        self.tiles[operation.result] = operation
        self._cost[operation.result] = 0

    def _is_worth_keeping(self, value: Value) -> bool:
        cost = self._cost[value]
        operation = value.operation
        assert operation is not None
        if cost < LOAD_COST:
            return False
        if any(_expands(user) for user in self.analysis.users[value]):
            return True
        sinks = self._sinks_of(value)
        depth = self.analysis.depth[operation]
        if any(self.analysis.depth[sink] > depth for sink in sinks):
            return True
        return cost >= EXPENSIVE and len(sinks) > 1

    def _sinks_of(self, value: Value) -> frozenset[Operation]:
        """The operations for which chunks of a value are made, directly or through lazy ones."""
        found = self._sinks.get(value)
        if found is None:
            sinks: set[Operation] = set()
            for user in self.analysis.users[value]:
                if is_lazy(user):
                    for result in user.results:
                        sinks |= self._sinks_of(result)
                else:
                    sinks.add(user)
            found = self._sinks[value] = frozenset(sinks)
        return found

    def settle(self, operation: Operation) -> None:
        """Makes the tiles that would read, after the operation, what it may have written before."""
        used = self.analysis.used_from if operation.regions else self.analysis.used_after
        for value in list(self._pending):
            if value in self._pending and used(value, operation):
                self.materialize(value)

    @contextmanager
    def region(self) -> Iterator[None]:
        """A part of the program that may be left out or repeated: what is made in it stays."""
        tiles, pending = dict(self.tiles), dict(self._pending)
        with self.buffers.scope():
            yield
        self.tiles, self._pending = tiles, pending

    def lower_body(self, block: Block) -> Operation:
        """Lowers a structured operation's block up to its terminator, and returns that."""
        self.lower_operations(block.operations[:-1])
        return block.operations[-1]

    # Values

    def scalar(self, value: Value) -> ir.Value:
        return self.scalars[value]

    def define(self, value: Value, what: ir.Value | Buffer | MovingTile) -> None:
        """Says what a value is: a scalar, or where a tile is."""
        if isinstance(what, ir.Value):
            self.scalars[value] = what
        else:
            self.tiles[value] = what

    def repeated_scalar(self, value: Value) -> ir.Value:
        """The scalar that every element of a tile is: of a splat, or a constant of one number."""
        operation = value.operation
        assert operation is not None
        if operation.name == "tt.splat":
            return self.scalar(operation.operands[0])
        return constant(element_of(value.type), operation.attributes["value"])

    def chunk(self, value: Value, position: Position) -> Chunk:
        """The lanes of a value at a position; of a scalar, the scalar in each."""
        if not is_tile(value):
            return repeated(element_of(value.type), self.scalar(value), position.lanes)
        return self.once((value, position.key), lambda: self._make_chunk(value, position))

    def numbers(self, value: Value, position: Position) -> Lanes:
        """The same for a value that isn't a pointer's."""
        chunk = self.chunk(value, position)
        assert isinstance(chunk, Lanes)
        return chunk

    def addresses(self, value: Value, position: Position) -> Addresses:
        """The same for pointers."""
        chunk = self.chunk(value, position)
        assert isinstance(chunk, Addresses)
        return chunk

    def _make_chunk(self, value: Value, position: Position) -> Chunk:
        tile = self.tiles[value]
        if isinstance(tile, Buffer):
            return load_chunk(self.builder, tile, position)
        if isinstance(tile, MovingTile):
            return self._moved(tile, position)
        with self.naming(tile):
            rule = LAZY.get(tile.name)
            if rule is not None:
                return rule(self, tile, position)
            return elementwise_chunk(self, tile, value, position)

    def _moved(self, tile: MovingTile, position: Position) -> Chunk:
        origin = self.chunk(tile.origin, position)
        if isinstance(origin, Addresses):
            element = element_of(tile.origin.type)
            distance = Lanes.uniform(element, position.lanes, tile.distance)
            return origin.advanced(self.builder, distance)
        return added(self.builder, origin, tile.distance)

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """What has been made with the same key for the chunk at hand, or else is made now."""
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = make()
        return found  # type: ignore[no-any-return]

    @contextmanager
    def new_chunk(self) -> Iterator[None]:
        """Around code that runs on its own: what was made elsewhere may not have been made here."""
        memo, self._memo = self._memo, {}
        yield
        self._memo = memo

    # Tiles in memory

    def materialize(self, value: Value) -> Buffer:
        """Puts a tile into memory, unless it is there."""
        tile = self.tiles[value]
        if isinstance(tile, Buffer):
            return tile
        assert isinstance(value.type, TensorType)
        buffer = self.buffers.take(value.type)
        self.store_tile(value, buffer)
        self.tiles[value] = buffer
        self._pending.pop(value, None)
        return buffer

    def store_tile(self, value: Value, buffer: Buffer) -> None:
        """Computes a tile into a buffer of its shape."""

        def body(position: Position) -> None:
            store_chunk(self.builder, buffer, position, self.chunk(value, position))

        each_chunk(self, buffer.shape, body)

    def reads_memory(self, value: Value) -> bool:
        """Whether making a tile would read memory of the kernel's."""
        return value in self._pending

    def line_buffer(self, size: int) -> ir.Value:
        """Room on the stack for text; the same each time."""
        if self._line is None:
            self._line = stack_memory(self._entry, ir.IntType(8), size)
        return self._line

    def stack_slot(self, type_: ir.Type) -> ir.Value:
        """Room for one scalar."""
        return stack_memory(self._entry, type_)

    def is_carried_to(self, argument: Value, terminator: Operation, value: Value) -> bool:
        """Whether a loop's next value of an argument is `value`."""
        return self.analysis.carried_arguments.get((terminator, value)) is argument

    # Control

    @property
    def failure(self) -> ir.Block:
        """The block that gives up the program after a failed assertion."""
        if self._failure is None:
            self._failure = self.llvm_function.append_basic_block("failed")
            ir.IRBuilder(self._failure).ret(ir.Constant(ir.IntType(32), 1))
        return self._failure


def is_lazy(operation: Operation) -> bool:
    """Whether an operation's results are tiles that can be made chunk by chunk."""
    if not operation.results or not is_tile(operation.results[0]):
        return False
    return operation.name in LAZY or elementwise.is_elementwise(operation.name)


def _expands(operation: Operation) -> bool:
    return (
        operation.name == "tt.broadcast"
        and operation.result.type.size > operation.operands[0].type.size  # type: ignore[union-attr]
    )
