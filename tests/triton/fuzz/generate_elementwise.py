# SPDX-License-Identifier: Apache-2.0
"""Element-wise statements."""

from __future__ import annotations

import numpy as np

from fuzz.generator import ARITHMETIC, Generator
from fuzz.programs import FLOATS, FLOATS8, INTEGERS, Literal, Operand, Type, Var, bits_of

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def partner(g: Generator, var: Var) -> tuple[Operand, tuple[int, ...]]:
    """Something of the same dtype to combine a variable with, and the shape that this gives."""
    kind = g.any_of(["same", "same", "same", "literal", "scalar", "broadcast"])
    if kind == "literal" and var.dtype not in FLOATS8:
        return g.literal(var.dtype), var.shape
    if kind == "scalar" and (not g.in_function or var.dtype in ARITHMETIC):
        return g.some((var.dtype,), ()), var.shape
    if kind == "broadcast":
        other = g.pick((var.dtype,), accept=lambda one: _fits(one.shape, var.shape))
        if other is not None:
            return other, np.broadcast_shapes(other.shape, var.shape)
    return g.some((var.dtype,), var.shape), var.shape


def _fits(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    try:
        shape = np.broadcast_shapes(first, second)
    except ValueError:
        return False
    return int(np.prod(shape)) <= 1024


def binary(g: Generator) -> None:
    var = g.some(ARITHMETIC)
    other, shape = partner(g, var)
    ops = ["add", "sub", "mul"]
    if var.dtype in INTEGERS:
        ops += ["and", "or", "xor"]
    operands: list[Operand] = [var, other]
    op = g.any_of(ops)
    if isinstance(other, Literal) and g.chance(0.3):
        operands.reverse()
        if (var.dtype in FLOATS and op in ("add", "mul")) or var.dtype in INTEGERS:
            pass
    g.emit(op, operands, Type(var.dtype, shape))


def logical(g: Generator) -> None:
    first = g.some(("i1",))
    if g.chance(0.2):
        g.emit("not", [first], first.type)
        return
    second = g.some(("i1",), first.shape)
    g.emit(g.any_of(["and", "or", "xor", "eq", "ne"]), [first, second], first.type)


def comparison(g: Generator) -> None:
    var = g.some(ARITHMETIC)
    other, shape = partner(g, var)
    g.emit(g.any_of(COMPARISONS), [var, other], Type("i1", shape))


def quotient(g: Generator) -> None:
    """Integer division and remainder, by anything but 0, and by -1 never the least number."""
    var = g.some(INTEGERS)
    type_ = var.type
    kind = g.any_of(["literal", "positive", "negative", "odd"])
    signed = var.dtype[0] == "i"
    divisor: Operand
    if kind == "literal":
        numbers = [1, 2, 3, 7, 8, 10, 64, 100] + ([-2, -3, -8] if signed else [])
        divisor = Literal(g.any_of(numbers))
    else:
        source = g.some((var.dtype,), var.shape)
        if kind == "odd" and not signed:
            divisor = g.emit("or", [source, Literal(1)], type_)
        else:
            low = g.emit("and", [source, Literal(g.any_of([7, 31, 63]))], type_)
            divisor = g.emit("add", [low, Literal(2 if kind == "negative" else 1)], type_)
            if kind == "negative" and signed:
                divisor = g.emit("neg", [divisor], type_)
    g.emit(g.any_of(["floordiv", "mod"]), [var, divisor], type_)


def float_quotient(g: Generator) -> None:
    var = g.some(FLOATS)
    other, shape = partner(g, var)
    # Triton divides half precision in float32.
    dtype = "f64" if var.dtype == "f64" else "f32"
    g.emit(g.any_of(["div", "div", "mod"]), [var, other], Type(dtype, shape))


def shift(g: Generator) -> None:
    var = g.some(INTEGERS)
    most = bits_of(var.dtype) - 1
    amount: Operand = Literal(g.random.randint(0, most))
    if g.chance(0.5):
        source = g.some((var.dtype,), var.shape)
        amount = g.emit("and", [source, Literal(most)], var.type)
    g.emit(g.any_of(["shl", "shr"]), [var, amount], var.type)


def unary(g: Generator) -> None:
    var = g.some(ARITHMETIC)
    ops = ["neg", "abs"]
    if var.dtype in INTEGERS:
        ops.append("not")
    if var.dtype in ("f32", "f64"):
        ops += ["floor", "ceil", "sqrt"]
    if var.dtype == "f32":
        ops.append("sqrt_rn")
    g.emit(g.any_of(ops), [var], var.type)


def positive_zero(g: Generator, var: Var) -> Var:
    """Without negative zeros, of which IEEE leaves open whether they are less than others."""
    return g.emit("add", [var, Literal(0.0)], var.type) if var.dtype in FLOATS else var


def without_nan(g: Generator, var: Var) -> Var:
    if var.dtype not in FLOATS:
        return var
    ordered = g.emit("eq", [var, var], Type("i1", var.shape))
    return g.emit("where", [ordered, var, Literal(1.0)], var.type)


def extremum(g: Generator) -> None:
    var = g.some(ARITHMETIC)
    other, shape = partner(g, var)
    op = g.any_of(["minimum", "maximum"])
    if var.dtype in FLOATS and g.chance(0.5):
        op += "_nan"
    positive_zero(g, g.emit(op, [var, other], Type(var.dtype, shape)))


def clamped(g: Generator) -> None:
    var = g.some(ARITHMETIC)
    if var.dtype in FLOATS:
        op = "clamp_nan"
        if g.chance(0.5):
            op, var = "clamp", without_nan(g, var)
        operands = [var, Literal(-2.0), Literal(3.0)]
    else:
        op, operands = "clamp", [var, Literal(2), Literal(50)]
    positive_zero(g, g.emit(op, operands, var.type))


def fused(g: Generator) -> None:
    var = g.some(("f32", "f32", "f16"))
    others = [g.some((var.dtype,), var.shape) for _ in range(2)]
    g.emit("fma", [var, *others], var.type)


def high_half(g: Generator) -> None:
    var = g.some(("i32", "u32", "u64", "i64"))
    g.emit("umulhi", [var, g.some((var.dtype,), var.shape)], var.type)


def choice(g: Generator) -> None:
    var = g.pick((*ARITHMETIC, "i1"), approximate=g.chance(0.3)) or g.some()
    condition = g.some(("i1",), var.shape if g.chance(0.8) else ())
    other, shape = partner(g, var) if not var.approximate else (g.literal(var.dtype), var.shape)
    g.emit("where", [condition, var, other], Type(var.dtype, shape))


def conversion(g: Generator) -> None:
    var = g.some((*ARITHMETIC, "i1", *FLOATS8) if g.chance(0.3) else (*ARITHMETIC, "i1"))
    if var.dtype in FLOATS8:
        g.emit("cast", [var], var.type.of(g.any_of(["f32", "f16", "bf16"])))
        return
    targets: list[str] = [*ARITHMETIC, "i1"]
    if var.dtype in ("f16", "bf16", "f32"):
        targets += FLOATS8
    dtype = g.any_of([target for target in targets if target != var.dtype])
    if var.dtype in FLOATS and dtype in INTEGERS:
        var = _within(g, var, dtype)
    g.emit("cast", [var], var.type.of(dtype))


def _within(g: Generator, var: Var, dtype: str) -> Var:
    """Floats that an integer type has room for."""
    bits = bits_of(dtype)
    unsigned = dtype[0] == "u"
    high = 2.0 ** (bits if unsigned else bits - 1)
    if var.dtype == "f16":
        high = min(high, 32768.0)
    # The greatest float below: as many bits as the mantissa has.
    mantissa = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}[var.dtype]
    most = high - max(1.0, high * 2.0**-mantissa)
    low = 0.0 if unsigned else -high
    var = without_nan(g, var)
    small = g.emit("minimum", [var, Literal(most)], var.type)
    return g.emit("maximum", [small, Literal(low)], var.type)


def reinterpretation(g: Generator) -> None:
    """The bits as another type. A NaN's are not known, so there must be none."""
    var = g.some(ARITHMETIC)
    bits = bits_of(var.dtype)
    others = [d for d in ARITHMETIC if bits_of(d) == bits and d != var.dtype]
    dtype = g.any_of(others)
    if var.dtype in FLOATS:
        var = without_nan(g, var)
    g.emit("bitcast", [var], var.type.of(dtype))


def transcendental(g: Generator) -> None:
    var = g.some(("f32", "f32", "f64"))
    ops = ["exp", "exp2", "log", "log2", "sin", "cos", "rsqrt", "erf", "sigmoid"]
    g.emit(g.any_of(ops), [var], var.type, approximate=True)
