# SPDX-License-Identifier: Apache-2.0
"""Loops, conditions, calls, early returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fuzz.generate_memory import base, load_through, pointer_tile, races
from fuzz.generator import ANY, ARITHMETIC, LIMIT, Generator
from fuzz.programs import (
    FLOATS,
    Assign,
    For,
    Function,
    If,
    Literal,
    Operand,
    Rebind,
    Return,
    Statement,
    Store,
    Type,
    Var,
    While,
)

MOST_TRIPS = 4


@contextmanager
def nested(g: Generator) -> Iterator[list[Statement]]:
    """A block of its own; what it brings into scope leaves with it."""
    block, g.block = g.block, []
    scope, g.scope = g.scope, list(g.scope)
    g.depth += 1
    yield g.block
    g.depth -= 1
    g.block, g.scope = block, scope


def fill(g: Generator, count: int) -> None:
    from fuzz.generate import FAMILIES, MEMORY

    allowed = [(family, weight) for family, weight, nests in FAMILIES if not nests or g.depth < 2]
    # Inside loops and conditions, what reads and writes memory is worth more.
    more = 3 if g.depth else 1
    weights = [weight * (more if family in MEMORY else 1) for family, weight in allowed]
    for family in g.random.choices([family for family, _ in allowed], weights, k=count):
        family(g)


# What loops and conditions change


def _carried(g: Generator, most: int = 3, beside: int = 0) -> list[Var]:
    """New variables, set to what others are, that are assigned again later.

    Triton takes a variable for unchanged by a loop's body when it is assigned another that was the
    same object before the loop, so that no two may be: the first is, others are computed anew.
    """
    made: list[Var] = []
    for _ in range(g.random.randint(1, most)):
        anew = bool(made) or bool(beside)
        if g.chance(0.25):
            moving = _carried_pointer(g, anew, made)
            if moving is not None:
                made.append(moving)
                continue
        source = g.pick((*ARITHMETIC, "i1"))
        if made and g.chance(0.4):
            source = g.pick((made[-1].dtype,), made[-1].shape) or source
        if source is None:
            source = g.some()
        copied = Var(g.name(), source.type, reads=source.reads | {ANY})
        made.append(_copy(g, copied, source, anew))
    return made


def _copy(g: Generator, target: Var, source: Var, anew: bool) -> Var:
    op = "copy"
    operands: list[Operand] = [source]
    if anew:
        op, neutral = "xor", Literal(False)
        if source.dtype.startswith("*"):
            op, neutral = "add", Literal(0)
        elif source.dtype in FLOATS:
            op, neutral = "mul", Literal(1.0)
        elif source.dtype != "i1":
            neutral = Literal(0)
        operands.append(neutral)
    g.block.append(Assign((target,), op, tuple(operands)))
    g.scope.append(target)
    return target


STEPS = (0, 1, 3, 16)


def _carried_pointer(g: Generator, anew: bool, others: list[Var]) -> Var | None:
    """One that moves through its storage; or, with another that it can change places with, both."""
    room = LIMIT - MOST_TRIPS * MOST_TRIPS * STEPS[-1] - 1

    def can_move(pointer: Var) -> bool:
        known = pointer.base is not None and pointer.limits is not None
        return known and pointer.limits[1] < room  # type: ignore[index]

    source = None
    partners = [one for one in others if one.base is not None]
    if partners:
        partner = partners[-1]
        source = g.pick(
            (partner.dtype,),
            partner.shape,
            lambda one: can_move(one) and _can_swap(one, partner),
        )
    if source is None:
        source = g.pick([f"*{dtype}" for dtype in ARITHMETIC], accept=can_move)
    if source is None or source.base is None or source.base.use not in ("read", "own"):
        return None
    # Wherever it comes from after it has changed places.
    reads = frozenset(one.name for one in g.bases if f"*{one.storage.dtype}" == source.dtype)
    moving = Var(
        g.name(),
        source.type,
        reads=source.reads | reads,
        base=source.base,
        limits=(0, LIMIT - 1),
        distinct=source.distinct,
    )
    return _copy(g, moving, source, anew)


def _can_swap(first: Var, second: Var) -> bool:
    if first.base is None or second.base is None or first.type != second.type:
        return False
    return first.base.use == second.base.use and first.distinct == second.distinct


def _rebind(g: Generator, carried: list[Var]) -> None:
    """Gives the carried variables new values, made of whatever is in scope."""
    sources: list[Operand] = []
    for var in carried:
        if var.dtype.startswith("*"):
            places = [one for one in carried if one is not var and _can_swap(one, var)]
            if places and g.chance(0.6):
                sources.append(g.any_of(places))
                continue
            step = Literal(g.any_of(STEPS))
            sources.append(g.emit("add", [var, step], var.type))
        else:
            sources.append(_next(g, var, carried))
    g.block.append(Rebind(tuple(carried), tuple(sources)))


def _next(g: Generator, var: Var, carried: list[Var]) -> Var:
    kind = g.any_of(["any", "any", "step", "swap", "move"])
    if kind == "swap":
        same = [one for one in carried if one is not var and one.type == var.type]
        if same:
            return g.any_of(same)
    if kind == "step" and var.dtype in ARITHMETIC:
        return g.emit("add", [var, g.literal(var.dtype)], var.type)
    if kind == "move" and len(var.shape) == 2:
        turned = g.emit("trans", [var], Type(var.dtype, var.shape[::-1]))
        if turned.type == var.type:
            return turned
        return g.emit("reshape", [turned], var.type)
    if kind == "move" and len(var.shape) == 1 and var.type.size > 1:
        half = Type(var.dtype, (var.type.size // 2, 2))
        pairs = g.emit("reshape", [var], half)
        turned = g.emit("trans", [pairs], Type(var.dtype, half.shape[::-1]))
        return g.emit("reshape", [turned], var.type)
    found = g.pick((var.dtype,), var.shape, lambda one: one is not var)
    if found is not None:
        return found
    return g.some((var.dtype,), var.shape)


# Families


def for_loop(g: Generator) -> None:
    carried = _carried(g)
    unrolled = g.chance(0.15)
    bounds, limits = _bounds(g, unrolled)
    index = Var(g.name(), Type("i32"), limits=limits)
    with nested(g) as body:
        g.scope.append(index)
        fill(g, g.random.randint(1, 4))
        _rebind(g, carried)
    g.block.append(For(index, bounds, body, unrolled))


def _bounds(
    g: Generator, literal: bool
) -> tuple[tuple[Operand, Operand, Operand], tuple[int, int]]:
    trips, step = g.random.randint(0, MOST_TRIPS), g.any_of([1, 1, 1, 2, 3])
    low = g.any_of([0, 0, 0, 1, 5])
    if literal or g.chance(0.4):
        if g.chance(0.2):
            first = low + trips * step
            return (Literal(first), Literal(low), Literal(-step)), (low, first)
        high = low + trips * step
        return (Literal(low), Literal(high), Literal(step)), (low, high)
    source = g.some(("i32",), ())
    high = g.emit("and", [source, Literal(3)], Type("i32"))
    if low:
        high = g.emit("add", [high, Literal(low)], Type("i32"))
    return (Literal(low), high, Literal(step)), (low, low + 3)


def dot_loop(g: Generator) -> None:
    """A product that a loop adds up, of whole numbers so small that all sums are exact."""
    rows, inner, columns = (g.any_of([1, 4, 16, 32]) for _ in range(3))
    dtype = g.any_of(["f32", "f16", "bf16"])
    start = _whole_numbers(g, "f32", (rows, columns))
    total = Var(g.name(), start.type)
    _copy(g, total, start, True)
    bounds, limits = _bounds(g, False)
    index = Var(g.name(), Type("i32"), limits=limits)
    with nested(g) as body:
        g.scope.append(index)
        first = _whole_numbers(g, dtype, (rows, inner))
        second = _whole_numbers(g, dtype, (inner, columns))
        if g.chance(0.4):
            made = g.emit("dot", [first, second], total.type)
            made = g.emit("add", [total, made], total.type)
        else:
            made = g.emit("dot_add", [first, second, total], total.type)
        g.block.append(Rebind((total,), (made,)))
    g.block.append(For(index, bounds, body))


def _whole_numbers(g: Generator, dtype: str, shape: tuple[int, ...]) -> Var:
    source = g.some(("i32", "u32", "i64"), shape)
    small = g.emit("and", [source, Literal(7)], source.type)
    return g.emit("cast", [small], small.type.of(dtype))


def while_loop(g: Generator) -> None:
    zero = g.emit("full", [], Type("i32"), value=0)
    count = Var(g.name(), Type("i32"))
    g.block.append(Assign((count,), "copy", (zero,)))
    carried = _carried(g, 2, beside=1)
    test: list[Assign] = []
    with nested(g) as block:
        limit: Operand = Literal(g.random.randint(0, MOST_TRIPS))
        again = g.emit("lt", [count, limit], Type("i1"))
        watched = g.any_of(carried)
        if g.chance(0.5) and watched.dtype in ("i32", "i64", "u32"):
            if watched.shape:
                most = Type(watched.dtype)
                axis = None if len(watched.shape) > 1 else 0
                watched = g.emit("max", [watched], most, axis=axis, keep=False)
            small = g.emit("lt", [watched, Literal(5000)], Type("i1"))
            again = g.emit("and", [again, small], Type("i1"))
        test = [statement for statement in block if isinstance(statement, Assign)]
    with nested(g) as body:
        g.scope.append(count)
        fill(g, g.random.randint(1, 3))
        _rebind(g, carried)
        more = g.emit("add", [count, Literal(1)], Type("i32"))
        g.block.append(Rebind((count,), (more,)))
    g.block.append(While(test, body))


def condition(g: Generator) -> Var:
    """A boolean scalar, that often differs between the programs of the grid."""
    if g.chance(0.4) and not g.in_function:
        number = g.program_number()
        with_ = Literal(g.random.randint(0, 2))
        return g.emit(g.any_of(["eq", "lt", "gt"]), [number, with_], Type("i1"))
    scalar = g.some((*ARITHMETIC, "i1"), ())
    if scalar.dtype == "i1":
        return scalar
    return g.emit(g.any_of(["lt", "ge"]), [scalar, g.literal(scalar.dtype)], Type("i1"))


def branch(g: Generator) -> None:
    carried = _carried(g, 2)
    test = condition(g)
    with nested(g) as then:
        fill(g, g.random.randint(1, 3))
        _rebind(g, carried)
    otherwise: list[Statement] = []
    if g.chance(0.6):
        with nested(g) as otherwise:
            fill(g, g.random.randint(0, 2))
            _rebind(g, carried[: g.random.randint(1, len(carried))])
    g.block.append(If(test, then, otherwise))


def early_return(g: Generator) -> None:
    if g.depth or g.in_function or not g.chance(0.5):
        return
    test = condition(g)
    with nested(g) as then:
        fill(g, g.random.randint(0, 2))
        g.block.append(Return())
    g.block.append(If(test, then, []))


def call(g: Generator) -> None:
    """Of a function of before with other arguments of the same types, or of a new one."""
    if g.in_function:
        return
    for function in g.functions:
        found = [g.pick((one.dtype,), one.shape) for one in function.parameters]
        if g.chance(0.3) and all(one is not None for one in found):
            _call(g, function, [one for one in found if one is not None])
            return
    sources = [g.some() for _ in range(g.random.randint(1, 3))]
    if g.chance(0.5):
        pointer = base(g, g.dtype(), ("own",))
        if pointer is not None:
            sources = [one for one in sources if not one.shape or g.chance(0.5)]
            sources.append(pointer)
    function = _function(g, sources)
    _call(g, function, sources)


def _call(g: Generator, function: Function, arguments: list[Var]) -> None:
    types = [result.type for result in function.results]
    results = g.emit_all("call", arguments, types, function=function)
    for made, result in zip(results, function.results, strict=True):
        g.scope.remove(made)
        reads = made.reads | result.reads
        known = Var(made.name, made.type, result.approximate, reads)
        assign = g.block[-1]
        assert isinstance(assign, Assign)
        assign.targets = tuple(known if one is made else one for one in assign.targets)
        g.scope.append(known)


def _update(g: Generator, start: Var) -> None:
    """Of memory behind a pointer, in place."""
    place, _ = pointer_tile(g, g.shape(), start, distinct=True)
    if place.limits is None:
        return
    value = load_through(g, place, None)
    made = g.emit("add", [value, g.literal(value.dtype)], value.type)
    if not races(g, place, [made]):
        g.block.append(Store(place, made))


def _function(g: Generator, sources: list[Var]) -> Function:
    parameters = [
        Var(g.name(), one.type, reads=one.reads, base=one.base, limits=one.limits)
        if one.dtype.startswith("*")
        else Var(g.name(), one.type, reads=one.reads | {ANY})
        for one in sources
    ]
    scope, block, bases = g.scope, g.block, g.bases
    g.scope, g.block = list(parameters), []
    g.bases = {one.base: one for one in parameters if one.base is not None}
    g.in_function = True
    g.depth += 1
    fill(g, g.random.randint(2, 4))
    for pointer in g.bases.values():
        _update(g, pointer)
    made = [var for var in g.scope if var not in parameters and not var.dtype.startswith("*")]
    results = g.random.sample(made, min(len(made), g.random.randint(1, 2)))
    if not results:
        results = [g.emit("copy", [parameters[0]], parameters[0].type)]
    name = f"function{len(g.functions)}"
    # Triton passes no tiles to functions that are not inlined.
    noinline = not any(one.shape for one in parameters) and g.chance(0.6)
    function = Function(name, tuple(parameters), g.block, tuple(results), noinline)
    g.scope, g.block, g.bases = scope, block, bases
    g.in_function = False
    g.depth -= 1
    g.functions.append(function)
    return function
