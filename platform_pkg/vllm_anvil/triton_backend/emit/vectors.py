# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on LLVM values written as arithmetic: `x * y + 1.0` emits what it says.

`Lanes` works alike on scalars and vectors of any width. It never reorders or contracts; `fma` alone
fuses. Python numbers become constants of the other operand's type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from llvmlite import ir

from vllm_anvil.triton_backend.emit.types import lanes_of, scalar_of, splat, with_scalar

_FLOAT_BITS = {ir.HalfType: 16, ir.FloatType: 32, ir.DoubleType: 64}


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """A value of integers or floats and the builder that its uses are emitted with.

    Integers are signed unless a method's name says otherwise. Comparisons of floats are ordered:
    false where an operand is NaN; `differs` is true there.
    """

    builder: ir.IRBuilder
    value: ir.Value

    @property
    def type(self) -> ir.Type:
        return self.value.type

    @property
    def bits(self) -> int:
        """The width of one lane."""
        scalar = scalar_of(self.type)
        if isinstance(scalar, ir.IntType):
            return scalar.width
        return _FLOAT_BITS[type(scalar)]

    @property
    def is_float(self) -> bool:
        return type(scalar_of(self.type)) in _FLOAT_BITS

    def constant(self, number: float) -> Lanes:
        return Lanes(self.builder, splat(self.type, number))

    def _other(self, other: Operand) -> ir.Value:
        return other.value if isinstance(other, Lanes) else splat(self.type, other)

    def _emit(self, name: str, *operands: Operand) -> Lanes:
        values = [self._other(operand) for operand in operands]
        return Lanes(self.builder, getattr(self.builder, name)(*values))

    def _arithmetic(self, name: str, left: Operand, right: Operand) -> Lanes:
        return self._emit(f"f{name}" if self.is_float else name, left, right)

    def __add__(self, other: Operand) -> Lanes:
        return self._arithmetic("add", self, other)

    def __radd__(self, other: Operand) -> Lanes:
        return self._arithmetic("add", other, self)

    def __sub__(self, other: Operand) -> Lanes:
        return self._arithmetic("sub", self, other)

    def __rsub__(self, other: Operand) -> Lanes:
        return self._arithmetic("sub", other, self)

    def __mul__(self, other: Operand) -> Lanes:
        return self._arithmetic("mul", self, other)

    def __rmul__(self, other: Operand) -> Lanes:
        return self._arithmetic("mul", other, self)

    def __truediv__(self, other: Operand) -> Lanes:
        return self._emit("fdiv", self, other)

    def __rtruediv__(self, other: Operand) -> Lanes:
        return self._emit("fdiv", other, self)

    def __neg__(self) -> Lanes:
        return self._emit("fneg" if self.is_float else "neg", self)

    def __and__(self, other: Operand) -> Lanes:
        return self._emit("and_", self, other)

    def __or__(self, other: Operand) -> Lanes:
        return self._emit("or_", self, other)

    def __xor__(self, other: Operand) -> Lanes:
        return self._emit("xor", self, other)

    def __invert__(self) -> Lanes:
        return self._emit("not_", self)

    def __lshift__(self, other: Operand) -> Lanes:
        return self._emit("shl", self, other)

    def __rshift__(self, other: Operand) -> Lanes:
        """Shifts the sign in."""
        return self._emit("ashr", self, other)

    def unsigned_shift_right(self, other: Operand) -> Lanes:
        return self._emit("lshr", self, other)

    def _compare(self, predicate: str, other: Operand) -> Lanes:
        name = "fcmp_ordered" if self.is_float else "icmp_signed"
        return Lanes(
            self.builder, getattr(self.builder, name)(predicate, self.value, self._other(other))
        )

    def __lt__(self, other: Operand) -> Lanes:
        return self._compare("<", other)

    def __le__(self, other: Operand) -> Lanes:
        return self._compare("<=", other)

    def __gt__(self, other: Operand) -> Lanes:
        return self._compare(">", other)

    def __ge__(self, other: Operand) -> Lanes:
        return self._compare(">=", other)

    def equals(self, other: Operand) -> Lanes:
        return self._compare("==", other)

    def differs(self, other: Operand) -> Lanes:
        if self.is_float:
            value = self.builder.fcmp_unordered("!=", self.value, self._other(other))
            return Lanes(self.builder, value)
        return self._compare("!=", other)

    def is_nan(self) -> Lanes:
        return Lanes(self.builder, self.builder.fcmp_unordered("uno", self.value, self.value))

    def choose(self, then: Operand, otherwise: Operand) -> Lanes:
        """Of booleans: `then` in the lanes that are true; one of the two must be `Lanes`."""
        like = then if isinstance(then, Lanes) else otherwise
        assert isinstance(like, Lanes)
        values = [like._other(choice) for choice in (then, otherwise)]
        return Lanes(self.builder, self.builder.select(self.value, *values))

    def call(self, intrinsic: str, *operands: Operand) -> Lanes:
        """`llvm.<intrinsic>` of operands of this type, with a result of this type."""
        values = [self.value, *map(self._other, operands)]
        return Lanes(self.builder, call_intrinsic(self.builder, intrinsic, values))

    def fma(self, factor: Operand, addend: Operand) -> Lanes:
        """`self * factor + addend`, rounded once."""
        return self.call("fma", factor, addend)

    def absolute(self) -> Lanes:
        return self.call("fabs") if self.is_float else self.call_with_flag("abs")

    def call_with_flag(self, intrinsic: str) -> Lanes:
        """`llvm.<intrinsic>` that takes a flag "the result may be undefined", here false."""
        values = [self.value, ir.Constant(ir.IntType(1), 0)]
        return Lanes(self.builder, call_intrinsic(self.builder, intrinsic, values))

    def square_root(self) -> Lanes:
        return self.call("sqrt")

    def with_sign_of(self, other: Operand) -> Lanes:
        return self.call("copysign", other)

    def as_integers(self) -> Lanes:
        """The bits of floats."""
        return Lanes(self.builder, self.builder.bitcast(self.value, self.integers(self.bits)))

    def as_floats(self) -> Lanes:
        """Bits as floats of their width."""
        return Lanes(self.builder, self.builder.bitcast(self.value, self.floats(self.bits)))

    def integers(self, bits: int) -> ir.Type:
        """The integer type of that width with as many lanes."""
        return with_scalar(self.type, ir.IntType(bits))

    def floats(self, bits: int) -> ir.Type:
        """The float type of that width with as many lanes."""
        scalars = {width: scalar for scalar, width in _FLOAT_BITS.items()}
        return with_scalar(self.type, scalars[bits]())

    def widened(self) -> Lanes:
        """Floats of 32 bits as floats of 64."""
        return Lanes(self.builder, self.builder.fpext(self.value, self.floats(64)))

    def narrowed(self) -> Lanes:
        """Floats of 64 bits rounded to the nearest of 32."""
        return Lanes(self.builder, self.builder.fptrunc(self.value, self.floats(32)))

    def cast(self, operation: str, type_: ir.Type) -> Lanes:
        """The builder's conversion of that name: `zext`, `trunc`, `sitofp`, ..."""
        return Lanes(self.builder, getattr(self.builder, operation)(self.value, type_))

    def any(self) -> ir.Value:
        """Of booleans: whether one lane is true, as a scalar `i1`."""
        if lanes_of(self.type) is None:
            return self.value
        return call_intrinsic(self.builder, "vector.reduce.or", [self.value], ir.IntType(1))


Operand: TypeAlias = "Lanes | float"


def call_intrinsic(
    builder: ir.IRBuilder,
    name: str,
    operands: Sequence[ir.Value],
    result: ir.Type | None = None,
) -> ir.Value:
    """`llvm.<name>` for the type of the first operand, which by default is the result's too."""
    first = operands[0].type
    kind = ir.FunctionType(
        first if result is None else result, [operand.type for operand in operands]
    )
    function = _declared(builder.module, f"llvm.{name}.{_mangled(first)}", kind)
    return builder.call(function, operands)


def _mangled(type_: ir.Type) -> str:
    lanes, scalar = lanes_of(type_), scalar_of(type_)
    name = f"i{scalar.width}" if isinstance(scalar, ir.IntType) else scalar.intrinsic_name
    return name if lanes is None else f"v{lanes}{name}"


def _declared(module: ir.Module, name: str, kind: ir.FunctionType) -> ir.Function:
    existing = module.globals.get(name)
    return ir.Function(module, kind, name) if existing is None else existing


def horner(x: Lanes, coefficients: Sequence[float]) -> Lanes:
    """The polynomial with these coefficients, the constant first, by fused steps."""
    *lower, highest = coefficients
    result = x.constant(highest)
    for coefficient in reversed(lower):
        result = result.fma(x, coefficient)
    return result


def outlined(
    name: str,
    body: Callable[..., Sequence[Lanes]],
    results: Sequence[ir.Type],
    *arguments: Lanes,
) -> tuple[Lanes, ...]:
    """`body(*arguments)` as a function of the module's own, made once for each type of arguments.

    For what is long or branches: the caller's block goes on, and a kernel that uses it ten times
    holds it once. `results` are the types of what the body returns.
    """
    builder = arguments[0].builder
    symbol = ".".join(["anvil", name, *(_mangled(argument.type) for argument in arguments)])
    function = builder.module.globals.get(symbol)
    if function is None:
        kind = ir.FunctionType(
            ir.LiteralStructType(results), [argument.type for argument in arguments]
        )
        function = _defined(ir.Function(builder.module, kind, symbol), body)
    aggregate = builder.call(function, [argument.value for argument in arguments])
    return tuple(
        Lanes(builder, builder.extract_value(aggregate, index)) for index in range(len(results))
    )


def _defined(function: ir.Function, body: Callable[..., Sequence[Lanes]]) -> ir.Function:
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    aggregate = ir.Constant(function.function_type.return_type, ir.Undefined)
    for index, result in enumerate(body(*(Lanes(builder, value) for value in function.args))):
        aggregate = builder.insert_value(aggregate, result.value, index)
    builder.ret(aggregate)
    return function
