# SPDX-License-Identifier: Apache-2.0
"""Calls of `triton.language.extra.libdevice`, by the name of the symbol.

Ours are `anvil_<function>_<type of the first argument>`, made by `triton_backend.libdevice`.
Kernels that name CUDA's module themselves bring its symbols, `__nv_<function>` with an `f` for
float32: they mean the same.
"""

from __future__ import annotations

from collections.abc import Callable

from vllm_anvil.triton_backend.emit import float8, math
from vllm_anvil.triton_backend.emit.floats import converted
from vllm_anvil.triton_backend.emit.math.formats import INFINITY, clamped
from vllm_anvil.triton_backend.emit.types import scalar_of
from vllm_anvil.triton_backend.emit.vectors import Lanes
from vllm_anvil.triton_backend.lower.elementwise.call import Call, Emitter, Handler
from vllm_anvil.triton_backend.lower.elementwise.conversion import (
    float_of_integer,
    integer_of_float,
    resized,
)
from vllm_anvil.triton_backend.lower.elementwise.floats import computed
from vllm_anvil.triton_backend.lower.elementwise.integers import upper_half
from vllm_anvil.triton_backend.ttir.model import Operation, ScalarType

_ROUNDINGS = {"rn": "roundeven", "rz": "trunc", "rd": "floor", "ru": "ceil"}
_E4B15 = ScalarType("f8E4M3B15")


def _positive_difference(x: Lanes, y: Lanes) -> Lanes:
    return (x <= y).choose(0.0, x - y)


def _saturated(x: Lanes) -> Lanes:
    """Within [0, 1]; NaN becomes 0."""
    return x.is_nan().choose(0.0, clamped(x, 0.0, 1.0))


# Computed in the type of the arguments.
_FLOATS: dict[str, tuple[Callable[..., Lanes], int]] = {
    "acos": (math.acos, 50),
    "acosh": (math.acosh, 100),
    "asin": (math.asin, 50),
    "asinh": (math.asinh, 100),
    "atan": (math.atan, 50),
    "atan2": (math.atan2, 70),
    "atanh": (math.atanh, 90),
    "cbrt": (math.cube_root, 140),
    "ceil": (lambda x: x.call("ceil"), 1),
    "copysign": (Lanes.with_sign_of, 1),
    "cos": (math.cos, 50),
    "cosh": (math.cosh, 60),
    "cospi": (math.cos_of_pi, 40),
    "erf": (math.erf, 40),
    "erfc": (math.erfc, 120),
    "exp": (math.exp, 17),
    "exp10": (math.exp10, 40),
    "exp2": (math.exp2, 16),
    "expm1": (math.expm1, 20),
    "fdim": (_positive_difference, 2),
    "floor": (lambda x: x.call("floor"), 1),
    "fma": (Lanes.fma, 1),
    "fmod": (math.truncated_remainder, 60),
    "hypot": (math.hypotenuse, 20),
    "ldexp": (math.scaled_by_power, 20),
    "log": (math.log, 28),
    "log10": (math.log10, 29),
    "log1p": (math.log1p, 34),
    "log2": (math.log2, 28),
    "nearbyint": (lambda x: x.call("roundeven"), 1),
    "nextafter": (math.next_after, 10),
    "normcdf": (math.normal_distribution, 120),
    "pow": (math.power, 150),
    "powi": (math.integer_power, 150),
    "rcbrt": (lambda x: 1.0 / math.cube_root(x), 140),
    "remainder": (math.nearest_remainder, 70),
    "rint": (lambda x: x.call("roundeven"), 1),
    "round": (math.round_half_away, 3),
    "rsqrt": (math.reciprocal_square_root, 8),
    "saturatef": (_saturated, 4),
    "scalbn": (math.scaled_by_power, 20),
    "sin": (math.sin, 50),
    "sinh": (math.sinh, 80),
    "sinpi": (math.sin_of_pi, 40),
    "sqrt": (Lanes.square_root, 4),
    "tan": (math.tan, 80),
    "tanh": (math.tanh, 30),
    "trunc": (lambda x: x.call("trunc"), 1),
    # The names with a rounding: to nearest, as all arithmetic is.
    "add_rn": (lambda x, y: x + y, 1),
    "div_rn": (lambda x, y: x / y, 4),
    "fma_rn": (Lanes.fma, 1),
    "mul_rn": (lambda x, y: x * y, 1),
    "rcp_rn": (lambda x: 1.0 / x, 4),
    "rsqrt_rn": (math.reciprocal_square_root, 8),
    "sqrt_rn": (Lanes.square_root, 4),
    "sub_rn": (lambda x, y: x - y, 1),
}
# CUDA's fast forms of float32 alone, no faster here than the precise ones.
_FAST = {
    "fast_cosf": "cos",
    "fast_dividef": "div_rn",
    "fast_exp10f": "exp10",
    "fast_expf": "exp",
    "fast_log10f": "log10",
    "fast_log2f": "log2",
    "fast_logf": "log",
    "fast_powf": "pow",
    "fast_sinf": "sin",
    "fast_tanf": "tan",
}


def _predicate(test: Callable[[Lanes], Lanes]) -> Emitter:
    """A boolean, or for CUDA's symbols 0 or 1."""

    def emit(call: Call) -> Lanes:
        (x,) = call.computed_operands()
        return resized(test(x), scalar_of(call.result_type).width, signed=False)

    return emit


def _exponent(call: Call) -> Lanes:
    (x,) = call.computed_operands()
    return math.exponent(x)


def _exponent_as_float(x: Lanes) -> Lanes:
    size = x.absolute()
    result = math.exponent(x).cast("sitofp", x.type)
    result = size.equals(0.0).choose(-INFINITY, result)
    return (size < INFINITY).choose(result, size)


def _to_integer(rounding: Callable[[Lanes], Lanes], signed: bool) -> Emitter:
    def emit(call: Call) -> Lanes:
        (x,) = call.computed_operands()
        return integer_of_float(rounding(x), scalar_of(call.result_type).width, signed)

    return emit


def _rounding(name: str) -> Callable[[Lanes], Lanes]:
    return lambda x: x.call(name)


def _from_integer(signed: bool) -> Emitter:
    return lambda call: float_of_integer(call.operands[0], call.float_result(), signed)


def _narrowing(toward_zero: bool) -> Emitter:
    return lambda call: converted(
        call.operands[0], call.float_operand(), call.float_result(), toward_zero
    )


def _same_bits(call: Call) -> Lanes:
    return call.operands[0].cast("bitcast", call.result_type)


def _in_32_bits(function: Callable[[Lanes], Lanes]) -> Emitter:
    """A count, which is of 32 bits whatever the argument's width."""
    return lambda call: resized(function(call.operands[0]), 32, signed=False)


def _first_set(x: Lanes) -> Lanes:
    """From 1; 0 where no bit is set."""
    return x.equals(0).choose(0, x.call_with_flag("cttz") + 1)


def _from_e4b15(call: Call) -> Lanes:
    wide = float8.from_float8(call.operands[0], _E4B15)
    return converted(wide, ScalarType("f32"), call.float_result())


def _to_e4b15(call: Call) -> Lanes:
    x = converted(call.operands[0], call.float_operand(), ScalarType("f32"))
    return float8.to_float8(x, _E4B15, toward_zero=False)


def _conversions() -> dict[str, Handler]:
    """`float2int_rn` and its like: the four roundings to integers, and integers as floats."""
    handlers = {}
    for integer, signed in (("int", True), ("uint", False), ("ll", True), ("ull", False)):
        for kind in ("float", "double"):
            for suffix, name in _ROUNDINGS.items():
                emit = _to_integer(_rounding(name), signed)
                handlers[f"{kind}2{integer}_{suffix}"] = Handler(emit, 5)
            handlers[f"{integer}2{kind}_rn"] = Handler(_from_integer(signed), 2)
    return handlers


FUNCTIONS: dict[str, Handler] = {
    **{name: Handler(computed(function), cost) for name, (function, cost) in _FLOATS.items()},
    **{
        name: Handler(computed(_FLOATS[precise][0]), _FLOATS[precise][1])
        for name, precise in _FAST.items()
    },
    **_conversions(),
    "abs": Handler(lambda call: call.operands[0].absolute(), 1),
    "brev": Handler(lambda call: call.operands[0].call("bitreverse"), 3),
    "clz": Handler(_in_32_bits(lambda x: x.call_with_flag("ctlz")), 3),
    "double2float_rn": Handler(_narrowing(toward_zero=False), 1),
    "double2float_rz": Handler(_narrowing(toward_zero=True), 4),
    "double_as_longlong": Handler(_same_bits, 0),
    "ffs": Handler(_in_32_bits(_first_set), 3),
    "finitef": Handler(_predicate(lambda x: x.absolute() < INFINITY), 1),
    "float_as_int": Handler(_same_bits, 0),
    "float_as_uint": Handler(_same_bits, 0),
    "from_float8e4b15": Handler(_from_e4b15, 8),
    "ilogb": Handler(_exponent, 6),
    "int_as_float": Handler(_same_bits, 0),
    "isfinited": Handler(_predicate(lambda x: x.absolute() < INFINITY), 1),
    "isinf": Handler(_predicate(lambda x: x.absolute().equals(INFINITY)), 1),
    "isnan": Handler(_predicate(Lanes.is_nan), 1),
    "llrint": Handler(_to_integer(_rounding("roundeven"), signed=True), 5),
    "llround": Handler(_to_integer(math.round_half_away, signed=True), 5),
    "logb": Handler(computed(_exponent_as_float), 8),
    "longlong_as_double": Handler(_same_bits, 0),
    "mulhi": Handler(upper_half(signed=True), 4),
    "popc": Handler(_in_32_bits(lambda x: x.call("ctpop")), 3),
    "signbit": Handler(_predicate(lambda x: x.as_integers() < 0), 1),
    "to_float8e4b15": Handler(_to_e4b15, 8),
    "uint_as_float": Handler(_same_bits, 0),
    "umulhi": Handler(upper_half(signed=False), 4),
}
_PREFIX = "anvil_"
_CUDA_PREFIX = "__nv_"
# Where CUDA's name is neither that of the function nor that with an `f`.
_CUDA = {
    "clzll": "clz",
    "popcll": "popc",
    "brevll": "brev",
    "ffsll": "ffs",
    "llabs": "abs",
    "fabs": "abs",
    "mul64hi": "mulhi",
    "umul64hi": "umulhi",
    "dadd_rn": "add_rn",
    "fadd_rn": "add_rn",
    "dsub_rn": "sub_rn",
    "fsub_rn": "sub_rn",
    "dmul_rn": "mul_rn",
    "fmul_rn": "mul_rn",
    "ddiv_rn": "div_rn",
    "fdiv_rn": "div_rn",
    "drcp_rn": "rcp_rn",
    "frcp_rn": "rcp_rn",
    "dsqrt_rn": "sqrt_rn",
    "fsqrt_rn": "sqrt_rn",
    "frsqrt_rn": "rsqrt_rn",
    "fmaf_rn": "fma_rn",
    "fast_fdividef": "fast_dividef",
    "isnand": "isnan",
    "isinfd": "isinf",
    "signbitd": "signbit",
}


def symbol(function: str, type_: str) -> str:
    """The symbol of a function of `triton_backend.libdevice` with a first argument of that type."""
    return f"{_PREFIX}{function}_{type_}"


def _function(operation: Operation) -> str | None:
    name = str(operation.attributes.get("symbol", ""))
    if name.startswith(_PREFIX):
        return name.removeprefix(_PREFIX).rpartition("_")[0]
    if not name.startswith(_CUDA_PREFIX):
        return None
    name = name.removeprefix(_CUDA_PREFIX)
    candidates = (_CUDA.get(name, name), name.removesuffix("f"), _CUDA.get(name.removesuffix("f")))
    return next((candidate for candidate in candidates if candidate in FUNCTIONS), None)


def _extern(call: Call) -> Lanes | tuple[Lanes, ...]:
    handler = FUNCTIONS.get(_function(call.operation) or "")
    if handler is None:
        call.refuse(f"the library function {call.operation.attributes.get('symbol')} is unknown")
    return handler.emit(call)


def _cost(operation: Operation) -> int:
    handler = FUNCTIONS.get(_function(operation) or "")
    return handler.cost if handler and isinstance(handler.cost, int) else 0


HANDLERS = {"tt.extern_elementwise": Handler(_extern, _cost)}
