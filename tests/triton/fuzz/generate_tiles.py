# SPDX-License-Identifier: Apache-2.0
"""Changes of shape, reductions, scans, sorting and products."""

from __future__ import annotations

import itertools
import math

from fuzz.combines import COMBINES, Combine
from fuzz.generate_elementwise import positive_zero, without_nan
from fuzz.generator import ARITHMETIC, MOST_ELEMENTS, Generator
from fuzz.programs import FLOATS, FLOATS8, INTEGERS, UNSIGNED, Literal, Operand, Type, Var, bits_of


def _tile(g: Generator) -> Var | None:
    return g.pick(accept=lambda var: len(var.shape) > 0, approximate=g.chance(0.4))


# Shapes


def broadcast(g: Generator) -> None:
    """A scalar or unit dimensions to more."""
    var = g.pick(approximate=g.chance(0.3))
    if var is None or (var.dtype in FLOATS8 and not var.shape):
        return
    if not var.shape:
        op = g.any_of(["splat", "broadcast"])
        g.emit(op, [var], Type(var.dtype, g.shape()))
        return
    if 1 in var.shape:
        shape = tuple(g.any_of([1, 2, 8, 16]) if n == 1 else n for n in var.shape)
    else:
        axis = g.random.randrange(len(var.shape) + 1)
        unit = list(var.shape)
        unit.insert(axis, 1)
        var = g.emit("expand", [var], Type(var.dtype, tuple(unit)), axis=axis)
        unit[axis] = g.any_of([1, 2, 4, 16])
        shape = tuple(unit)
    if math.prod(shape) <= MOST_ELEMENTS and len(shape) <= 4:
        g.emit("broadcast", [var], Type(var.dtype, shape))


def reshape(g: Generator) -> None:
    var = _tile(g)
    if var is None:
        return
    if g.chance(0.2):
        g.emit("ravel", [var], Type(var.dtype, (var.type.size,)))
        return
    shape = _factored(g, var.type.size)
    g.emit("reshape", [var], Type(var.dtype, shape))


def _factored(g: Generator, size: int) -> tuple[int, ...]:
    rank = g.any_of([1, 2, 2, 3])
    bits = size.bit_length() - 1
    cuts = sorted(g.random.randint(0, bits) for _ in range(rank - 1))
    bounds = [0, *cuts, bits]
    return tuple(1 << (high - low) for low, high in itertools.pairwise(bounds))


def permute(g: Generator) -> None:
    var = g.pick(accept=lambda one: len(one.shape) > 1, approximate=g.chance(0.4))
    if var is None:
        return
    if len(var.shape) == 2 and g.chance(0.7):
        g.emit("trans", [var], Type(var.dtype, var.shape[::-1]))
        return
    order = list(range(len(var.shape)))
    g.random.shuffle(order)
    shape = tuple(var.shape[axis] for axis in order)
    g.emit("permute", [var], Type(var.dtype, shape), order=tuple(order))


def join(g: Generator) -> None:
    var = _tile(g) if g.chance(0.9) else g.pick(accept=lambda one: not one.shape)
    if var is None or var.type.size * 2 > MOST_ELEMENTS:
        return
    other = var if var.approximate else g.some((var.dtype,), var.shape)
    kind = g.any_of(["join", "interleave", "cat"])
    if kind == "join" or not var.shape:
        g.emit("join", [var, other], Type(var.dtype, (*var.shape, 2)))
        return
    axis = len(var.shape) - 1
    if kind == "cat":
        axis = g.random.randrange(len(var.shape))
    shape = list(var.shape)
    shape[axis] *= 2
    g.emit(kind, [var, other], Type(var.dtype, tuple(shape)), axis=axis)


def split(g: Generator) -> None:
    var = g.pick(accept=lambda one: one.shape[-1:] == (2,) and len(one.shape) > 1)
    if var is None:
        tile = _tile(g)
        if tile is None or tile.type.size < 4:
            return
        shape = (tile.type.size // 2, 2)
        var = g.emit("reshape", [tile], Type(tile.dtype, shape))
    half = Type(var.dtype, var.shape[:-1])
    g.emit_all("split", [var], [half, half])


def flip(g: Generator) -> None:
    # The frontend flips integers' and floats' bits, and has no booleans of one bit.
    var = g.pick(ARITHMETIC, accept=lambda one: one.type.size > 1 and len(one.shape) < 4)
    if var is None or var.type.size > 256:
        return
    if var.dtype in FLOATS:
        var = without_nan(g, var)
    g.emit("flip", [var], var.type, axis=g.random.randrange(len(var.shape)))


def gather(g: Generator) -> None:
    var = _tile(g)
    if var is None:
        return
    axis = g.random.randrange(len(var.shape))
    extent = var.shape[axis]
    shape = list(var.shape)
    shape[axis] = g.any_of([extent, 1, 4, 16])
    if math.prod(shape) > MOST_ELEMENTS:
        return
    source = g.some(("i32", "i32", "i64", "u8", "i16"), tuple(shape))
    if extent - 1 > 2 ** (bits_of(source.dtype) - 1) - 1:
        return
    index = g.emit("and", [source, Literal(extent - 1)], source.type)
    g.emit("gather", [var, index], Type(var.dtype, tuple(shape)), axis=axis)


# Reductions and scans


def _without(shape: tuple[int, ...], axis: int | None, keep: bool) -> tuple[int, ...]:
    if axis is None:
        return (1,) * len(shape) if keep else ()
    kept = (1,) if keep else ()
    return (*shape[:axis], *kept, *shape[axis + 1 :])


def _axis_of(g: Generator, shape: tuple[int, ...], may_be_all: bool = True) -> int | None:
    if may_be_all and len(shape) > 1 and g.chance(0.15):
        return None
    return g.random.randrange(len(shape))


def _summed_dtype(dtype: str) -> str:
    """What Triton sums in."""
    if dtype in INTEGERS and bits_of(dtype) < 32:
        return "u32" if dtype in UNSIGNED else "i32"
    return "u32" if dtype == "i1" else dtype


def _compared_dtype(dtype: str) -> str:
    """What Triton takes extremes in."""
    if bits_of(dtype) >= 32:
        return dtype
    return "f32" if dtype in FLOATS else "i32"


def reduction(g: Generator) -> None:
    op = g.any_of(["sum", "sum", "max", "min", "xor_sum", "reduce_or", "argmax", "argmin"])
    dtypes = ARITHMETIC if op in ("max", "min", "argmax", "argmin") else (*ARITHMETIC, "i1")
    if op in ("xor_sum", "reduce_or"):
        dtypes = (*INTEGERS, "i1")
    var = g.some_tile(dtypes)
    places = op.startswith("arg")
    axis, keep = _axis_of(g, var.shape, not places), g.chance(0.3)
    shape = _without(var.shape, axis, keep)
    if places:
        var = positive_zero(g, without_nan(g, var))
        if g.chance(0.5):
            g.emit(op, [var], Type("i32", shape), axis=axis, keep=keep)
            return
        types = [Type(var.dtype, shape), Type("i32", shape)]
        g.emit_all(f"{op[3:]}_and_place", [var], types, axis=axis, keep=keep)
        return
    dtype = var.dtype
    if op in ("max", "min"):
        dtype = _compared_dtype(dtype)
    elif op == "sum":
        dtype = _summed_dtype(dtype)
    approximate = op == "sum" and dtype in FLOATS
    result = g.emit(op, [var], Type(dtype, shape), axis=axis, keep=keep, approximate=approximate)
    if op in ("max", "min"):
        positive_zero(g, result)


def _operands_of(g: Generator, combine: Combine) -> list[Var]:
    first = g.some_tile(INTEGERS if combine.dtypes[0] == "any" else ("i1",))
    own = [dtype for dtype in combine.dtypes if dtype == "any"]
    dtype = first.dtype if combine.dtypes[0] == "any" else g.any_of(("i32", "i64", "u32"))
    operands = [first]
    for wanted in combine.dtypes[1:]:
        operands.append(g.some((dtype if wanted == "any" else wanted,), first.shape))
    assert own or len(operands) == 1
    return operands


def custom_reduction(g: Generator) -> None:
    combine = g.any_of([one for one in COMBINES.values() if one.commutative])
    operands = _operands_of(g, combine)
    shape = operands[0].shape
    axis, keep = g.random.randrange(len(shape)), g.chance(0.3)
    types = [Type(operand.dtype, _without(shape, axis, keep)) for operand in operands]
    g.emit_all("reduce", operands, types, axis=axis, keep=keep, combine=combine.name)


def scan(g: Generator) -> None:
    reverse = g.chance(0.35)
    if g.chance(0.4):
        op = g.any_of(["cumsum", "cumsum", "cumprod"])
        var = g.some_tile((*ARITHMETIC, "i1") if op == "cumsum" else INTEGERS)
        dtype = _summed_dtype(var.dtype)
        axis = g.random.randrange(len(var.shape))
        type_ = Type(dtype, var.shape)
        g.emit(op, [var], type_, axis=axis, reverse=reverse, approximate=dtype in FLOATS)
        return
    combine = g.any_of(COMBINES.values())
    operands = _operands_of(g, combine)
    axis = g.random.randrange(len(operands[0].shape))
    types = [operand.type for operand in operands]
    g.emit_all("scan", operands, types, axis=axis, reverse=reverse, combine=combine.name)


def sort(g: Generator) -> None:
    var = g.pick(ARITHMETIC, accept=lambda one: 1 < one.type.size <= 64)
    if var is None or var.shape[-1] == 1:
        return
    var = positive_zero(g, without_nan(g, var))
    if g.chance(0.7):
        g.emit("sort", [var], var.type, descending=g.chance(0.5))
        return
    k = 1 << g.random.randint(0, var.shape[-1].bit_length() - 1)
    # Of fewer than all, by maxima, which are taken in 32 bits at least.
    if k < var.shape[-1] and bits_of(var.dtype) < 32:
        return
    g.emit("topk", [var], Type(var.dtype, (*var.shape[:-1], k)), k=k)


def histogram(g: Generator) -> None:
    var = g.some_tile(("i32", "u32"), rank=1)
    bins = g.any_of([2, 8, 16, 64])
    low = g.emit("and", [var, Literal(bins - 1)], var.type)
    type_ = Type("i32", (bins,))
    if g.chance(0.5):
        mask = g.some(("i1",), var.shape)
        g.emit("histogram_masked", [low, mask], type_, bins=bins)
    else:
        g.emit("histogram", [low], type_, bins=bins)


def softmax(g: Generator) -> None:
    var = g.some_tile(("f32",))
    finite = g.emit("clamp", [without_nan(g, var), Literal(-50.0), Literal(50.0)], var.type)
    axis = g.random.randrange(len(var.shape))
    g.emit("softmax", [finite], var.type, axis=axis, approximate=True)


def dot(g: Generator) -> None:
    first = g.pick(("i8", "f16", "bf16", "f32", "f64"), accept=lambda one: len(one.shape) in (2, 3))
    if first is None or g.chance(0.3):
        shape = tuple(g.any_of([1, 4, 16, 32]) for _ in range(2))
        if g.chance(0.2):
            shape = (g.any_of([1, 2, 4]), *shape)
        first = g.make(Type(g.any_of(["f32", "f16", "bf16", "i8", "f64"]), shape))
    *stack, rows, inner = first.shape
    columns = g.any_of([1, 4, 8, 16, 64])
    if inner * columns > MOST_ELEMENTS or rows * columns > MOST_ELEMENTS:
        return
    shape = (*stack, inner, columns)
    if math.prod(shape) > MOST_ELEMENTS:
        return
    second = g.some((first.dtype,), shape)
    dtype = {"i8": "i32", "f64": "f64"}.get(first.dtype, "f32")
    type_ = Type(dtype, (*stack, rows, columns))
    if type_.size > MOST_ELEMENTS:
        return
    operands: list[Operand] = [first, second]
    op = "dot"
    if g.chance(0.5):
        operands.append(g.some((dtype,), type_.shape))
        op = "dot_add"
    g.emit(op, operands, type_, approximate=dtype in FLOATS)
