# SPDX-License-Identifier: Apache-2.0
"""Pointers that are numbers for a while or chosen by a condition, and tensor descriptors."""

from __future__ import annotations

from fuzz.generate_memory import base, load_through, races
from fuzz.generator import ARITHMETIC, LIMIT, Generator
from fuzz.programs import Assign, Literal, Type, Var, bits_of


def _known(g: Generator) -> Var | None:
    """A pointer, or a tile of them, whose place is known."""
    dtypes = [f"*{dtype}" for dtype in ARITHMETIC]
    return g.pick(dtypes, accept=lambda one: one.limits is not None and one.base is not None)


def through_integer(g: Generator) -> None:
    """To a number and back, some elements further on: what it points into is no longer known."""
    pointer = _known(g)
    if pointer is None or pointer.base is None or pointer.limits is None:
        return
    elements = g.any_of([0, 1, 5])
    low, high = pointer.limits
    if high + elements >= LIMIT or pointer.base.use not in ("read", "own"):
        return
    size = max(bits_of(pointer.dtype[1:]) // 8, 1)
    moved = g.emit(
        "through_integer",
        [pointer],
        pointer.type,
        elements=elements,
        bytes=elements * size,
        element=pointer.dtype[1:],
        base=pointer.base,
        limits=(low + elements, high + elements),
        distinct=pointer.distinct,
    )
    if g.chance(0.7):
        load_through(g, moved, None)


def choice(g: Generator) -> None:
    """One of two pointers into the same storage, for each element."""
    first = _known(g)
    if first is None or first.base is None or first.base.use not in ("read", "own"):
        return
    second = g.pick(
        (first.dtype,),
        first.shape,
        lambda one: one.base is first.base and one.limits is not None and one is not first,
    )
    if second is None or first.limits is None or second.limits is None:
        return
    condition = g.some(("i1",), first.shape)
    limits = (
        min(first.limits[0], second.limits[0]),
        max(first.limits[1], second.limits[1]),
    )
    facts = {"base": first.base, "limits": limits}
    chosen = g.emit("where", [condition, first, second], first.type, **facts)
    load_through(g, chosen, None)


def descriptor(g: Generator) -> None:
    """A block of a matrix that may reach beyond it: zeros are read there, nothing is written."""
    dtype = g.any_of([d for d in ARITHMETIC if d != "f64"])
    stores = g.chance(0.4)
    start = base(g, dtype, ("own",) if stores else ("read", "own"))
    if start is None:
        return
    size = bits_of(dtype) // 8
    least = max(16 // size, 1)
    block = (g.any_of([1, 2, 8, 16]), least * g.any_of([1, 2]))
    rows, columns = g.random.randint(1, 20), g.random.randint(1, 40)
    stride = least * g.random.randint(3, 6)
    columns = min(columns, stride)
    offsets = (g.any_of([0, 1, 7, -2]), g.any_of([0, 0, 3, -4]))
    facts = {"shape_": [rows, columns], "strides": [stride, 1], "block": list(block)}
    facts["offsets"] = list(offsets)
    if (rows + 1) * stride >= LIMIT:
        return
    if not stores:
        loaded = g.emit("descriptor_load", [start], Type(dtype, block), **facts)
        assert start.base is not None
        g.read_through(loaded, start.base)
        return
    value = g.some((dtype,), block)
    if not races(g, start, [value]):
        g.block.append(Assign((), "descriptor_store", (start, value), facts))


def zero_offset(g: Generator) -> None:
    """Pointers that stay where they are."""
    pointer = _known(g)
    if pointer is not None:
        facts = {"base": pointer.base, "limits": pointer.limits, "distinct": pointer.distinct}
        g.emit("add", [pointer, Literal(0)], pointer.type, **facts)
