# SPDX-License-Identifier: Apache-2.0
"""Indices, loads, stores and atomic operations."""

from __future__ import annotations

import math

from fuzz.generator import ANY, ARITHMETIC, LIMIT, SHARED, Generator
from fuzz.programs import (
    FLOATS,
    INTEGERS,
    Literal,
    Operand,
    PointerArgument,
    Store,
    Type,
    Var,
    bits_of,
)

# Indices


def index(g: Generator, shape: tuple[int, ...], room: int, distinct: bool = False) -> Var:
    """An integer tile of a shape, within 0 and `room`: affine, or where it may be gathered."""
    if not distinct and g.chance(0.2):
        gathered = _gathered_index(g, shape, room)
        if gathered is not None:
            return gathered
    counted = linear(g, shape, distinct)
    offset = _changed(g, counted, room)
    if g.chance(0.1):
        type_ = offset.type.of(g.any_of(["i64", "u32", "i16"]))
        return g.emit("cast", [offset], type_, limits=offset.limits, distinct=distinct)
    return offset


def _gathered_index(g: Generator, shape: tuple[int, ...], room: int) -> Var | None:
    source = g.pick(INTEGERS, shape)
    if source is None:
        return None
    bits = min(bits_of(source.dtype) - 1, room.bit_length() - 1, g.random.randint(0, 10))
    mask = (1 << bits) - 1
    return g.emit("and", [source, Literal(mask)], source.type, limits=(0, mask))


def linear(g: Generator, shape: tuple[int, ...], distinct: bool) -> Var:
    """Counts the elements of a tile, its dimensions in any order; or leaves some of them out."""
    if not shape:
        number = g.random.randint(0, 100)
        return g.emit("full", [], Type("i32"), value=number, limits=(number, number))
    order = list(range(len(shape)))
    if g.chance(0.3):
        g.random.shuffle(order)
    stride, total = 1, None
    for axis in reversed(order):
        extent = shape[axis]
        term = _axis(g, shape, axis)
        if stride != 1:
            high = (extent - 1) * stride
            term = g.emit("mul", [term, Literal(stride)], term.type, limits=(0, high))
        leaves_out = not distinct and total is not None and g.chance(0.1)
        if not leaves_out:
            total = term if total is None else _sum(g, total, term)
            stride *= extent
    assert total is not None
    if total.shape != shape:
        limits = total.limits
        total = g.emit("broadcast", [total], Type("i32", shape), limits=limits)
    return total


def _axis(g: Generator, shape: tuple[int, ...], axis: int) -> Var:
    """The index along one dimension, of extent 1 along the others."""
    extent = shape[axis]
    limits = (0, extent - 1)
    term = g.emit("arange", [], Type("i32", (extent,)), start=0, end=extent, limits=limits)
    for other in range(len(shape)):
        if other == axis:
            continue
        at = 0 if other < axis else len(term.shape)
        wide = list(term.shape)
        wide.insert(at, 1)
        term = g.emit("expand", [term], Type("i32", tuple(wide)), axis=at, limits=limits)
    return term


def _sum(g: Generator, first: Var, second: Var) -> Var:
    shape = tuple(max(a, b) for a, b in zip(first.shape, second.shape, strict=True))
    (low, high), (low2, high2) = first.limits or (0, 0), second.limits or (0, 0)
    limits = (low + low2, high + high2)
    return g.emit("add", [first, second], Type("i32", shape), limits=limits)


def _changed(g: Generator, counted: Var, room: int) -> Var:
    """Strided, moved, turned round or mixed; elements that are distinct stay so."""
    _, high = counted.limits or (0, 0)
    type_ = counted.type
    kind = g.any_of(["as is", "as is", "scale", "move", "turn", "mix", "xor", "argument"])
    span = 1 << max(high.bit_length(), 0)
    if kind == "scale":
        factor = g.any_of([2, 3, 4, 7])
        if high * factor < room:
            return g.emit("mul", [counted, Literal(factor)], type_, limits=(0, high * factor))
    elif kind == "move":
        by = g.any_of([1, 3, 16, 64])
        if high + by < room:
            return g.emit("add", [counted, Literal(by)], type_, limits=(by, high + by))
    elif kind == "turn":
        turned = g.emit("sub", [counted, Literal(high)], type_)
        return g.emit("neg", [turned], type_, limits=(0, high))
    elif kind == "mix" and 1 < span <= room:
        factor, by = g.any_of([3, 5, 7, 13]), g.any_of([0, 1, 5])
        mixed = g.emit("mul", [counted, Literal(factor)], type_)
        if by:
            mixed = g.emit("add", [mixed, Literal(by)], type_)
        return g.emit("and", [mixed, Literal(span - 1)], type_, limits=(0, span - 1))
    elif kind == "xor" and 1 < span <= room:
        key = g.random.randrange(span)
        return g.emit("xor", [counted, Literal(key)], type_, limits=(0, span - 1))
    elif kind == "argument" and not g.in_function:
        stride = g.scalar_argument("i32")
        assert stride is not None and stride.limits is not None
        by = stride.limits[0]
        if by > 0 and high * by < room:
            return g.emit("mul", [counted, stride], type_, limits=(0, high * by))
        if by >= 0 and high + by < room:
            return g.emit("add", [counted, stride], type_, limits=(by, high + by))
    return counted


def mask(g: Generator, shape: tuple[int, ...]) -> Var:
    found = g.pick(("i1",), shape)
    if found is not None and g.chance(0.6):
        return found
    if not shape:
        return g.make(Type("i1"))
    counted = linear(g, shape, False)
    _, high = counted.limits or (0, 0)
    border = Literal(g.random.randint(0, high + 1))
    return g.emit(g.any_of(["lt", "ge", "ne"]), [counted, border], Type("i1", shape))


# Pointers


def _bases(g: Generator, dtype: str, uses: tuple[str, ...]) -> list[Var]:
    return [
        pointer
        for argument, pointer in g.bases.items()
        if argument.storage.dtype == dtype and argument.use in uses
    ]


def base(g: Generator, dtype: str, uses: tuple[str, ...]) -> Var | None:
    found = _bases(g, dtype, uses)
    if not found or g.chance(0.2):
        argument = g.storage(dtype, g.any_of(uses))
        if argument is not None:
            return g.bases[argument]
    return g.any_of(found) if found else None


def pointer_tile(
    g: Generator, shape: tuple[int, ...], start: Var, distinct: bool = False
) -> tuple[Var, Var | None]:
    """Pointers from a base, with the mask that they need where some are out of bounds."""
    need: Var | None = None
    offset = index(g, shape, LIMIT, distinct)
    limits = offset.limits or (0, 0)
    if shape and g.chance(0.1) and offset.dtype == "i32":
        away = g.any_of([5000, -40000, 1 << 20])
        far = g.emit("add", [offset, Literal(away)], offset.type)
        border = g.random.randint(*limits)
        inside = g.emit("lt", [offset, Literal(border)], Type("i1", offset.shape))
        offset = g.emit("where", [inside, offset, far], offset.type)
        need, limits = inside, (min(limits[0], border), border)
    type_ = Type(start.dtype, shape)
    used = (start.limits or (0, 0))[1] + limits[1]
    assert used < LIMIT
    # Without limits it is not used again, by others who do not know the mask.
    facts = {"base": start.base, "limits": (0, used) if need is None else None}
    facts["distinct"] = distinct
    if shape and g.chance(0.2):
        wide = g.emit("broadcast", [start], type_, base=start.base)
        return g.emit("add", [wide, offset], type_, **facts), need
    return g.emit("add", [start, offset], type_, **facts), need


def load(g: Generator, type_: Type) -> Var | None:
    """A load of a type; None where no storage of its dtype can be had."""
    pointer, need = None, None
    old = g.pick((f"*{type_.dtype}",), type_.shape, lambda var: var.limits is not None)
    if old is not None and g.chance(0.4) and _is_usable(old):
        pointer = old
    if pointer is None:
        start = base(g, type_.dtype, ("read", "own", "own"))
        if start is None:
            return None
        pointer, need = pointer_tile(g, type_.shape, start)
    return load_through(g, pointer, need)


def _is_usable(pointer: Var) -> bool:
    """Whether all of a tile of pointers may be loaded through."""
    return pointer.base is not None and pointer.base.use in ("read", "own")


def load_through(g: Generator, pointer: Var, need: Var | None) -> Var:
    dtype = pointer.dtype[1:]
    type_ = Type(dtype, pointer.shape)
    operands: list[Operand] = [pointer]
    condition, op = need, "load"
    if g.chance(0.35):
        more = mask(g, type_.shape)
        condition = more if need is None else g.emit("and", [need, more], more.type)
    elif g.chance(0.05):
        op = "load_volatile"
    if condition is not None:
        operands.append(condition)
        op = "load_masked"
        if dtype in (*ARITHMETIC, "i1") and g.chance(0.7):
            other = g.pick((dtype,), type_.shape) if g.chance(0.4) else None
            operands.append(other or g.literal(dtype))
            op = "load_other"
    loaded = g.emit(op, operands, type_)
    return loaded if pointer.base is None else g.read_through(loaded, pointer.base)


# Families


def a_load(g: Generator) -> None:
    dtype = g.dtype() if g.chance(0.85) else g.any_of(["i1", "f8e4m3", "f8e5m2"])
    shape = () if g.chance(0.15) else g.shape()
    load(g, Type(dtype, shape))


def a_store(g: Generator) -> None:
    """To memory that the program owns and may read again."""
    value = g.pick()
    if value is None or (value.dtype[:2] == "f8" and g.chance(0.7)):
        return
    start, need = None, None
    pointer = g.pick((f"*{value.dtype}",), value.shape, _can_be_stored_to)
    if pointer is None or g.chance(0.5):
        start = base(g, value.dtype, ("own",))
        if start is None:
            return
        pointer, need = pointer_tile(g, value.shape, start, distinct=True)
    condition = mask(g, value.shape) if g.chance(0.3) else None
    if need is not None:
        condition = need if condition is None else g.emit("and", [need, condition], need.type)
    stored: Operand = value
    if g.chance(0.05) and value.dtype in ARITHMETIC:
        stored = g.literal(value.dtype)
    if races(g, pointer, [pointer, value, condition]):
        return
    g.block.append(Store(pointer, stored, condition))


def _can_be_stored_to(pointer: Var) -> bool:
    return (
        (pointer.distinct or not pointer.shape)
        and pointer.base is not None
        and (pointer.base.use == "own" and pointer.limits is not None)
    )


def races(g: Generator, pointer: Var, used: list[Var | None]) -> bool:
    """Whether what is stored may have been read through another view of the storage.

    Threads of a GPU would race there; the backend says that it does not order such accesses.
    """
    argument = pointer.base
    assert argument is not None
    others = {
        one.name
        for one in g.arguments
        if isinstance(one, PointerArgument)
        and one.storage is argument.storage
        and one is not argument
    }
    reads = frozenset().union(*(var.reads for var in used if var is not None))
    return bool(reads & others) or (bool(others) and ANY in reads)


_ATOMIC_DTYPES = ("i32", "u32", "i64", "u64", "f32", "f64", "f16", "bf16")


def an_atomic(g: Generator) -> None:
    """On the program's own memory, the result used; or on everybody's, and the order unknown."""
    dtype = g.any_of(_ATOMIC_DTYPES)
    if g.chance(0.4) and dtype in INTEGERS:
        _shared_atomic(g, dtype)
        return
    start = base(g, dtype, ("own",))
    if start is None:
        return
    shape = () if g.chance(0.2) else g.shape()
    value = g.some((dtype,), shape)
    pointer, need = pointer_tile(g, shape, start, distinct=True)
    if races(g, pointer, [pointer, value, need]):
        return
    type_ = Type(dtype, shape)
    if dtype in INTEGERS and need is None and g.chance(0.3):
        expected = g.some((dtype,), shape)
        if not races(g, pointer, [expected]):
            g.emit("atomic_cas", [pointer, expected, value], type_)
        return
    names = ["add", "max", "min", "and", "or", "xor", "xchg"]
    if dtype in FLOATS:
        names = ["add", "xchg"] if dtype in ("f32", "f64") else ["add"]
    op = f"atomic_{g.any_of(names)}"
    operands: list[Operand] = [pointer, value]
    if need is None and g.chance(0.4):
        need = mask(g, shape)
        if races(g, pointer, [need]):
            return
    if need is not None:
        operands.append(need)
        op += "_masked"
    g.emit(op, operands, type_)


def _shared_atomic(g: Generator, dtype: str) -> None:
    found = _bases(g, dtype, ("shared",))
    if found:
        start = g.any_of(found)
    else:
        argument = g.storage(dtype, "shared")
        if argument is None:
            return
        start = g.bases[argument]
    shape = () if g.chance(0.2) else g.shape()
    if math.prod(shape) > SHARED:
        return
    place = index(g, shape, SHARED)
    pointer = g.emit("add", [start, place], Type(start.dtype, shape))
    value = g.some((dtype,), shape)
    # One kind of operation a storage: others would not commute with it.
    kind = ["add", "max", "min", "and", "or", "xor"][int(start.name[1:] or 0) % 6]
    g.block.append(_unused(f"atomic_{kind}", [pointer, value]))


def _unused(op: str, operands: list[Operand]):  # type: ignore[no-untyped-def]
    from fuzz.programs import Assign

    return Assign((), op, tuple(operands))
