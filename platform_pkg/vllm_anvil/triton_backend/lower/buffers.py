# SPDX-License-Identifier: Apache-2.0
"""Memory for tiles that have to be somewhere: the stack if small, else the worker's scratch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from llvmlite import ir

from vllm_anvil.triton_backend.ttir.model import ElementType, TensorType

ALIGNMENT = 64
# What one tile may take of the stack, and all of a function together: workers' stacks may be small.
STACK_TILE_BYTES = 8 << 10
STACK_BYTES = 64 << 10

I8 = ir.IntType(8)
I64 = ir.IntType(64)


@dataclass(frozen=True, eq=False)
class Buffer:
    """A tile in memory, row by row, without padding."""

    pointer: ir.Value
    shape: tuple[int, ...]
    element: ElementType


def stack_memory(entry: ir.IRBuilder, type_: ir.Type, count: int = 1) -> ir.Value:
    """Room for elements on the stack, taken once for all of the function."""
    memory = entry.alloca(ir.ArrayType(type_, count))
    memory.align = ALIGNMENT
    memory.type = ir.PointerType()  # llvmlite still says what it points to
    return memory


class BufferAllocator:
    """Hands out a function's buffers. What is taken within a scope is free for others after it."""

    def __init__(self, entry: ir.IRBuilder, scratch: ir.Value):
        self._entry = entry
        self._scratch = scratch
        self._stack_bytes = 0
        self._used = 0
        # The most that was in use of the scratch at once.
        self.scratch_bytes = 0
        self._free: dict[int, list[ir.Value]] = {}
        self._scopes: list[list[tuple[int, ir.Value]]] = [[]]

    @contextmanager
    def scope(self) -> Iterator[None]:
        used = self._used
        self._scopes.append([])
        try:
            yield
        finally:
            self._used = used
            for size, pointer in self._scopes.pop():
                self._free.setdefault(size, []).append(pointer)

    def take(self, type_: TensorType) -> Buffer:
        """Its content is undefined."""
        element = type_.element
        size = -(-type_.size * element.bytes // ALIGNMENT) * ALIGNMENT
        if self._free.get(size):
            pointer = self._free[size].pop()
            self._scopes[-1].append((size, pointer))
        elif size <= STACK_TILE_BYTES and self._stack_bytes + size <= STACK_BYTES:
            self._stack_bytes += size
            # All of `size`: the next tile that gets it may have more elements.
            pointer = stack_memory(self._entry, I8, size)
            self._scopes[-1].append((size, pointer))
        else:
            pointer = self._entry.gep(self._scratch, [I64(self._used)], source_etype=I8)
            self._used += size
            self.scratch_bytes = max(self.scratch_bytes, self._used)
        return Buffer(pointer, type_.shape, element)
