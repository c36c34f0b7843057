# SPDX-License-Identifier: Apache-2.0
"""The families of statements with their weights, and whole programs."""

from __future__ import annotations

import math

from fuzz import generate_control as control
from fuzz import generate_elementwise as elementwise
from fuzz import generate_memory as memory
from fuzz import generate_pointers as pointers
from fuzz import generate_tiles as tiles
from fuzz.generator import Family, Generator
from fuzz.programs import (
    MARGIN,
    Literal,
    PointerArgument,
    Program,
    Statement,
    Storage,
    Store,
    Type,
    Var,
    uses_of,
    walk,
)

# Each with how often it is taken, and whether it has blocks of its own.
FAMILIES: list[tuple[Family, int, bool]] = [
    (memory.a_load, 9, False),
    (memory.a_store, 11, False),
    (memory.an_atomic, 3, False),
    (pointers.through_integer, 2, False),
    (pointers.choice, 2, False),
    (pointers.descriptor, 2, False),
    (pointers.zero_offset, 1, False),
    (elementwise.binary, 9, False),
    (elementwise.logical, 2, False),
    (elementwise.comparison, 3, False),
    (elementwise.quotient, 3, False),
    (elementwise.float_quotient, 2, False),
    (elementwise.shift, 3, False),
    (elementwise.unary, 3, False),
    (elementwise.extremum, 3, False),
    (elementwise.clamped, 2, False),
    (elementwise.fused, 1, False),
    (elementwise.high_half, 1, False),
    (elementwise.choice, 4, False),
    (elementwise.conversion, 6, False),
    (elementwise.reinterpretation, 2, False),
    (elementwise.transcendental, 2, False),
    (tiles.broadcast, 4, False),
    (tiles.reshape, 4, False),
    (tiles.permute, 4, False),
    (tiles.join, 3, False),
    (tiles.split, 3, False),
    (tiles.flip, 1, False),
    (tiles.gather, 2, False),
    (tiles.reduction, 6, False),
    (tiles.custom_reduction, 3, False),
    (tiles.scan, 4, False),
    (tiles.sort, 1, False),
    (tiles.histogram, 1, False),
    (tiles.softmax, 1, False),
    (tiles.dot, 2, False),
    (control.dot_loop, 1, False),
    (control.for_loop, 6, True),
    (control.while_loop, 2, True),
    (control.branch, 5, True),
    (control.early_return, 2, False),
    (control.call, 3, False),
]

MEMORY = (memory.a_load, memory.a_store, memory.an_atomic, pointers.descriptor)
MOST_RESULTS = 5


def generate(seed: int) -> Program:
    """The program of a seed; always the same."""
    g = Generator(seed)
    g.program_number()
    control.fill(g, g.random.randint(4, 11))
    _store_results(g)
    body = [*g.prologue, *g.block]
    return Program(
        seed,
        g.grid,
        g.storages,
        g.arguments,
        g.functions,
        body,
        on_device=g.chance(0.15),
        for_least_processor=g.chance(0.2),
    )


def _store_results(g: Generator) -> None:
    """Stores what nothing has used yet, each variable to a storage of its own."""
    used = {operand for statement in _all(g) for operand in uses_of(statement)}
    unused = [var for var in g.scope if var not in used and not var.dtype.startswith("*")]
    if not unused:
        unused = [var for var in g.scope if not var.dtype.startswith("*")]
    g.random.shuffle(unused)
    for var in unused[:MOST_RESULTS]:
        _store_result(g, var)


def _all(g: Generator) -> list[Statement]:
    return [*walk(g.prologue), *walk(g.block)]


def _store_result(g: Generator, var: Var) -> None:
    size = var.type.size
    number = len(g.storages)
    total = math.prod(g.grid) * size + 2 * MARGIN
    storage = Storage(f"r{number}", var.dtype, total)
    argument = PointerArgument(f"r{number}", storage, "result", MARGIN, size)
    g.storages.append(storage)
    g.arguments.append(argument)
    scalar = Type(f"*{var.dtype}")
    start = g.emit("mul", [g.program_number(), Literal(size)], Type("i32"))
    base = g.emit("add", [Var(argument.name, scalar, base=argument), start], scalar)
    pointer = base
    if var.shape:
        place = memory.linear(g, var.shape, distinct=True)
        pointer = g.emit("add", [base, place], Type(scalar.dtype, var.shape))
    g.block.append(Store(pointer, var))
