# SPDX-License-Identifier: Apache-2.0
"""What `triton.language.extra.libdevice` is on the device: Triton's names, our symbols.

Functions take and give the types of CUDA's library. Missing are the gamma and Bessel functions, the
inverses of the error function, norms, and arithmetic with a rounding other than to nearest.
`lower.elementwise.libdevice` emits the symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.language import core

from vllm_anvil.triton_backend.lower.elementwise.libdevice import symbol

# By the types of the arguments: the function that is emitted and the type of its result.
_Overloads = dict[tuple[str, ...], tuple[str, str]]

_FLOATS = ("fp32", "fp64")


def _of_floats(name: str, arity: int = 1, types: tuple[str, ...] = _FLOATS) -> _Overloads:
    """`arity` arguments and the result, all of one of the types."""
    return {(type_,) * arity: (name, type_) for type_ in types}


def _to(name: str, result: str, types: tuple[str, ...] = _FLOATS) -> _Overloads:
    """One argument of the types."""
    return {(type_,): (name, result) for type_ in types}


_UNARY = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cbrt",
    "ceil",
    "cos",
    "cosh",
    "cospi",
    "erf",
    "erfc",
    "exp",
    "exp10",
    "exp2",
    "expm1",
    "floor",
    "log",
    "log10",
    "log1p",
    "log2",
    "logb",
    "nearbyint",
    "normcdf",
    "rcbrt",
    "rcp_rn",
    "rint",
    "round",
    "rsqrt",
    "sin",
    "sinh",
    "sinpi",
    "sqrt",
    "sqrt_rn",
    "tan",
    "tanh",
    "trunc",
]
_BINARY = [
    "add_rn",
    "atan2",
    "copysign",
    "div_rn",
    "fdim",
    "fmod",
    "hypot",
    "mul_rn",
    "nextafter",
    "remainder",
    "sub_rn",
]
_OF_FLOAT32 = [
    "fast_cosf",
    "fast_exp10f",
    "fast_expf",
    "fast_log10f",
    "fast_log2f",
    "fast_logf",
    "fast_sinf",
    "fast_tanf",
    "rsqrt_rn",
    "saturatef",
]
# With the type of the argument; results have none without a sign.
_INTEGERS = {"int": "int32", "uint": "uint32", "ll": "int64", "ull": "uint64"}
_KINDS = {"float": "fp32", "double": "fp64"}


def _conversions() -> dict[str, _Overloads]:
    overloads = {}
    for kind, float_type in _KINDS.items():
        for integer, integer_type in _INTEGERS.items():
            for rounding in ("rn", "rz", "rd", "ru"):
                name = f"{kind}2{integer}_{rounding}"
                overloads[name] = _to(name, integer_type.removeprefix("u"), (float_type,))
            name = f"{integer}2{kind}_rn"
            overloads[name] = _to(name, float_type, (integer_type,))
    return overloads


_SIGNATURES: dict[str, _Overloads] = {
    **{name: _of_floats(name) for name in _UNARY},
    **{name: _of_floats(name, 2) for name in _BINARY},
    **{name: _of_floats(name, 3) for name in ("fma", "fma_rn")},
    **{name: _of_floats(name, 1, ("fp32",)) for name in _OF_FLOAT32},
    **{name: _of_floats(name, 2, ("fp32",)) for name in ("fast_dividef", "fast_powf")},
    **{name: _to(name, "int1") for name in ("isinf", "isnan")},
    **{name: _to(name, "int32") for name in ("ilogb", "signbit")},
    **{name: _to(name, "int64") for name in ("llrint", "llround")},
    **{name: _to(name, "int32", ("int32", "int64")) for name in ("clz", "ffs", "popc")},
    **{
        name: {(type_, "int32"): (name, type_) for type_ in _FLOATS} for name in ("ldexp", "scalbn")
    },
    **_conversions(),
    "abs": _of_floats("abs", 1, ("int32", "int64", *_FLOATS)),
    "brev": _of_floats("brev", 1, ("int32", "int64")),
    "double2float_rn": _to("double2float_rn", "fp32", ("fp64",)),
    "double2float_rz": _to("double2float_rz", "fp32", ("fp64",)),
    "double_as_longlong": _to("double_as_longlong", "int64", ("fp64",)),
    "finitef": _to("finitef", "int1", ("fp32",)),
    "float_as_int": _to("float_as_int", "int32", ("fp32",)),
    "float_as_uint": _to("float_as_uint", "int32", ("fp32",)),
    "int_as_float": _to("int_as_float", "fp32", ("int32",)),
    "isfinited": _to("isfinited", "int1", ("fp64",)),
    "longlong_as_double": _to("longlong_as_double", "fp64", ("int64",)),
    "mulhi": {
        **_of_floats("mulhi", 2, ("int32", "int64")),
        **_of_floats("umulhi", 2, ("uint32", "uint64")),
    },
    "pow": {
        **_of_floats("pow", 2),
        **{(type_, "int32"): ("powi", type_) for type_ in _FLOATS},
    },
    "uint_as_float": _to("uint_as_float", "fp32", ("uint32",)),
}


def _call(overloads: _Overloads, arguments: tuple[Any, ...], semantic: Any) -> Any:
    symbols = {
        tuple(map(core.dtype, types)): (symbol(function, types[0]), core.dtype(result))
        for types, (function, result) in overloads.items()
    }
    return core.extern_elementwise(
        "", "", list(arguments), symbols, is_pure=True, _semantic=semantic
    )


def _function(name: str, overloads: _Overloads) -> Callable[..., Any]:
    def call(*arguments: Any, _semantic: Any = None) -> Any:
        return _call(overloads, arguments, _semantic)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`{name}` of {', or '.join(', '.join(types) for types in overloads)}."
    return core.extern(call)


# Triton looks functions up in the module by name.
globals().update({name: _function(name, overloads) for name, overloads in _SIGNATURES.items()})


@core.builtin
def convert_custom_float8(
    arg: Any, dst_ty: Any, fp_downcast_rounding: Any = None, _semantic: Any = None
) -> Any:
    """float8e4b15 to or from another float, for the code generation's `convert_custom_types`.

    float16 and float32 are rounded to nearest even, whatever rounding is asked for.
    """
    if arg.type.scalar.is_fp8e4b15():
        wide = _call(_to("from_float8e4b15", "fp32", ("fp8e4b15",)), (arg,), _semantic)
        return wide.to(dst_ty.scalar, _semantic=_semantic)
    types = ("fp16", "bf16", "fp32", "fp64")
    return _call(_to("to_float8e4b15", "fp8e4b15", types), (arg,), _semantic)
