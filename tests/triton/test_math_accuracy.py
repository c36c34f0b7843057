# SPDX-License-Identifier: Apache-2.0
"""The error of each function against a wider format, over every exponent and densely near zero.

References are NumPy's functions of x86's 80-bit floats, and PyTorch's of float64 where NumPy has
none: those may be one unit in the last place of float64 off themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from element_calls import CPUS, compile_operation

from vllm_anvil.triton_backend.emit import HostCpu
from vllm_anvil.triton_backend.lower.elementwise.libdevice import symbol

Wide = np.longdouble
FORMATS = {"f32": np.float32, "f64": np.float64}
TRITON = {"f32": "fp32", "f64": "fp64"}
PI = Wide(3.141592653589793) + Wide(1.2246467991473532e-16)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    np.seterr(all="ignore")


def every_exponent(type_: str, each: int) -> np.ndarray:
    """Numbers of both signs, `each` of every exponent, denormals, infinities and NaN among them."""
    generator = np.random.default_rng(1)
    bits, mantissa = (32, 23) if type_ == "f32" else (64, 52)
    unsigned = np.dtype(f"u{bits // 8}").type
    exponents = np.arange(1 << (bits - 1 - mantissa), dtype=unsigned)[:, None]
    numbers = generator.integers(0, 1 << mantissa, (len(exponents), each), dtype=unsigned)
    numbers = (exponents << unsigned(mantissa)) | numbers
    numbers = np.concatenate([numbers, numbers | unsigned(1 << (bits - 1))])
    return numbers.ravel().view(FORMATS[type_])


def special(type_: str) -> np.ndarray:
    limits = np.finfo(FORMATS[type_])
    numbers = [0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, np.inf, limits.tiny, limits.max]
    numbers = [*numbers, limits.smallest_subnormal, 1 - limits.epsneg, 1 + limits.eps]
    return np.array([*numbers, *(-number for number in numbers), np.nan], FORMATS[type_])


def samples(type_: str, each: int = 64, dense: int = 20000) -> np.ndarray:
    generator = np.random.default_rng(2)
    intervals = [(-1, 1), (0.5, 2), (-12, 12), (-110, 110), (-800, 800), (-1e-3, 1e-3)]
    spread = [generator.uniform(*interval, dense) for interval in intervals]
    everywhere = every_exponent(type_, each if type_ == "f32" else each // 8)
    return np.concatenate([special(type_), everywhere, *spread]).astype(FORMATS[type_])


def greatest_error(result: np.ndarray, exact: np.ndarray) -> float:
    """In units in the last place; what is zero, infinite or NaN must be exactly that."""
    nearest = exact.astype(result.dtype)
    finite = np.isfinite(nearest)
    np.testing.assert_array_equal(result[~finite], nearest[~finite])
    unit = np.spacing(np.abs(nearest[finite])).astype(Wide)
    errors = np.abs(result[finite].astype(Wide) - exact[finite].astype(Wide)) / unit
    zero = (nearest == 0) & (exact == 0)
    np.testing.assert_array_equal(result[zero], nearest[zero])
    return float(np.max(errors, initial=0.0))


def in_float64(function: Callable[..., torch.Tensor]) -> Callable[..., np.ndarray]:
    def reference(x: np.ndarray) -> np.ndarray:
        return function(torch.from_numpy(x.astype(np.float64))).numpy().astype(Wide)

    return reference


def sine_of_pi(x: np.ndarray) -> np.ndarray:
    """sin(pi * x), exactly 0 at integers."""
    turned = np.fmod(x, Wide(2))
    size = np.abs(turned)
    size = np.where(size > 1, size - 2, size)
    near = np.where(np.abs(size) > 0.5, np.copysign(1 - np.abs(size), size), size)
    return np.sin(PI * np.copysign(near, near * turned))


def cosine_of_pi(x: np.ndarray) -> np.ndarray:
    """cos(pi * x), exactly 0 half-way between integers."""
    size = np.abs(np.fmod(x, Wide(2)))
    size = np.where(size > 1, 2 - size, size)
    return np.sin(PI * (Wide(0.5) - size))


def normal(x: np.ndarray) -> np.ndarray:
    return 0.5 * in_float64(torch.special.erfc)(-x / np.sqrt(Wide(2)))


def logb(x: np.ndarray) -> np.ndarray:
    usual = np.isfinite(x) & (x != 0)
    return np.where(usual, np.frexp(x)[1] - Wide(1), np.log2(x * x))


# The function, its reference, and the bounds for float32 and float64.
UNARY = {
    "exp": (np.exp, 1, 1),
    "exp2": (np.exp2, 1, 1),
    "exp10": (lambda x: np.power(Wide(10), x), 1, 2),
    "expm1": (np.expm1, 2, 2),
    "log": (np.log, 1, 1),
    "log2": (np.log2, 2, 2),
    "log10": (np.log10, 2, 2),
    "log1p": (np.log1p, 2, 2),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2, 2),
    "sqrt": (np.sqrt, 0.5, 0.5),
    "cbrt": (np.cbrt, 1, 1),
    "sin": (np.sin, 2, 2),
    "cos": (np.cos, 2, 2),
    "tan": (np.tan, 1, 4),
    "sinh": (np.sinh, 1, 3),
    "cosh": (np.cosh, 1, 2),
    "tanh": (np.tanh, 2, 2),
    "asinh": (np.arcsinh, 1, 3),
    "acosh": (np.arccosh, 1, 3),
    "atanh": (np.arctanh, 1, 4),
    "asin": (np.arcsin, 1, 3),
    "acos": (np.arccos, 1, 2),
    "atan": (np.arctan, 1, 3),
    "erf": (in_float64(torch.special.erf), 2, 2),
    "erfc": (in_float64(torch.special.erfc), 1, 5),
}
# Of libdevice alone.
LIBRARY = {
    "sinpi": (sine_of_pi, 2, 2),
    "cospi": (cosine_of_pi, 2, 2),
    "normcdf": (normal, 1, None),
    "rcbrt": (lambda x: 1 / np.cbrt(x), 2, 2),
    "round": (lambda x: np.trunc(x + np.copysign(Wide(0.5), x)), 0, 0),
    "rint": (np.rint, 0, 0),
    "logb": (logb, 0, 0),
}
BINARY = {
    "pow": (np.power, 1, 2),
    "atan2": (np.arctan2, 1, 3),
    "hypot": (np.hypot, 1, 3),
    "fmod": (np.fmod, 0, 0),
    "fdim": (lambda x, y: np.where(x <= y, 0, x - y), 0.5, 0.5),
}


def check(call: Callable[..., np.ndarray], entry: tuple, type_: str, *arrays: np.ndarray) -> None:
    function, *bounds = entry
    bound = bounds[type_ == "f64"]
    if bound is None:
        return
    exact = function(*(array.astype(Wide) for array in arrays))
    assert greatest_error(call(*arrays), exact) <= bound


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("type_", FORMATS)
@pytest.mark.parametrize("name", UNARY)
def test_functions(name: str, type_: str, cpu: HostCpu | None) -> None:
    call = compile_operation(f"math.{name}", [type_], [type_], cpu=cpu)
    check(call, UNARY[name], type_, samples(type_))


@pytest.mark.parametrize("type_", FORMATS)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_scalars(name: str, type_: str) -> None:
    x = samples(type_, each=8, dense=500)
    scalar = compile_operation(f"math.{name}", [type_], [type_], lanes=None)(x)
    vector = compile_operation(f"math.{name}", [type_], [type_])(x)
    np.testing.assert_array_equal(scalar, vector)


def library(name: str, type_: str, arity: int) -> Callable[..., np.ndarray]:
    return compile_operation(
        "tt.extern_elementwise", [type_] * arity, [type_], symbol=symbol(name, TRITON[type_])
    )


@pytest.mark.parametrize("type_", FORMATS)
@pytest.mark.parametrize("name", LIBRARY)
def test_functions_of_the_library(name: str, type_: str) -> None:
    check(library(name, type_, 1), LIBRARY[name], type_, samples(type_))


@pytest.mark.parametrize("type_", FORMATS)
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two(name: str, type_: str) -> None:
    generator = np.random.default_rng(5)
    edges = special(type_)
    x, y = (grid.ravel() for grid in np.meshgrid(edges, edges))
    everywhere = generator.permutation(every_exponent(type_, 16))
    near = generator.uniform(-5, 5, (2, 20000)).astype(x.dtype)
    # Powers that neither overflow nor vanish.
    base = np.exp2(generator.uniform(-30, 30, 20000)).astype(x.dtype)
    exponent = (generator.uniform(-1, 1, 20000) * 120 / np.abs(np.log2(base))).astype(x.dtype)
    x = np.concatenate([x, everywhere, near[0], np.rint(near[0]), base])
    y = np.concatenate([y, generator.permutation(everywhere), near[1], np.rint(near[1]), exponent])
    check(library(name, type_, 2), BINARY[name], type_, x, y)


@pytest.mark.parametrize("type_", FORMATS)
def test_integer_powers(type_: str) -> None:
    generator = np.random.default_rng(6)
    x = generator.uniform(-3, 3, 4000).astype(FORMATS[type_])
    n = generator.integers(-40, 40, 4000).astype(np.int32)
    result = compile_operation("math.fpowi", [type_, "i32"], [type_])(x, n)
    assert greatest_error(result, np.power(x.astype(Wide), n.astype(Wide))) <= 2


@pytest.mark.parametrize("type_", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sin", "rsqrt", "erf"])
def test_16_bit_floats_are_rounded_float32(name: str, type_: str) -> None:
    """Every code."""
    dtype = torch.float16 if type_ == "f16" else torch.bfloat16
    codes = torch.arange(1 << 16).to(torch.int16).view(dtype)
    stored = codes.view(torch.int16).numpy().view(np.float16 if type_ == "f16" else np.uint16)
    result = compile_operation(f"math.{name}", [type_], [type_])(stored)
    single = compile_operation(f"math.{name}", ["f32"], ["f32"])(codes.to(torch.float32).numpy())
    expected = torch.from_numpy(single).to(dtype)
    result = torch.from_numpy(result.view(np.int16)).view(dtype)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["sin", "cos"])
@pytest.mark.parametrize("lanes", [None, 4, 16])
def test_one_huge_angle_among_small_ones(name: str, lanes: int | None) -> None:
    """The lanes beside it stay as they are."""
    x = np.linspace(-10, 10, 64)
    x[5], x[40], x[41] = 1e22, -1.7e308, np.inf
    result = compile_operation(f"math.{name}", ["f64"], ["f64"], lanes=lanes)(x)
    assert greatest_error(result, getattr(np, name)(x.astype(Wide))) <= 2
    both = compile_operation("math.sincos", ["f64"], ["f64", "f64"], lanes=lanes)(x)
    np.testing.assert_array_equal(both[name == "cos"], result)


@pytest.mark.parametrize("name", ["exp", "expm1", "log", "sin", "tanh", "erf"])
def test_a_zero_keeps_its_sign_where_the_function_does(name: str) -> None:
    for type_, dtype in FORMATS.items():
        zero = np.array([-0.0], dtype)
        result = compile_operation(f"math.{name}", [type_], [type_])(zero)
        assert np.signbit(result[0]) == (name not in ("exp",)), type_
