# SPDX-License-Identifier: Apache-2.0
"""Triton's library of functions: ours has CUDA's names and types, and each symbol is emitted."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from element_calls import BASELINE, compile_operation, operation, storage
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource
from triton.language import core
from triton.language.extra import libdevice as portable
from triton.language.extra.cuda import libdevice as cuda

from vllm_anvil.triton_backend import libdevice
from vllm_anvil.triton_backend.lower import lower_kernel
from vllm_anvil.triton_backend.lower.elementwise import cost

ELEMENTS = {"fp16": "f16", "bf16": "bf16", "fp32": "f32", "fp64": "f64", "int1": "i1"}
ELEMENTS |= {f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (32, 64)}
NAMES = sorted(
    name
    for name, value in vars(libdevice).items()
    if not name.startswith("_") and getattr(value, "__triton_builtin__", False)
    if name != "convert_custom_float8"
)


def overloads(module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> dict[tuple, tuple]:
    """By the names of the arguments' types: the symbol and the type of the result.

    That which it is cast to comes before that which the symbol gives, where they differ.
    """
    tables: list[dict] = []
    casts: list[str] = []

    class Result:
        def to(self, type_: Any, **_: Any) -> None:
            casts.append(str(type_))

    def extern(library: str, path: str, arguments: list, table: dict, **_: Any) -> Result:
        tables.append(table)
        return Result()

    monkeypatch.setattr(core, "extern_elementwise", extern)
    function = inspect.unwrap(getattr(cuda, name))
    arity = len(inspect.signature(function).parameters) - 1
    getattr(module, name)(*[None] * arity, _semantic=object())
    (table,) = tables
    return {
        tuple(str(argument) for argument in arguments): (symbol, *casts, str(result))
        for arguments, (symbol, result) in table.items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_each_has_the_types_of_cuda_and_is_emitted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hasattr(portable, name)
    ours, theirs = (overloads(module, name, monkeypatch) for module in (libdevice, cuda))
    assert {key: result for key, (_, result, *_) in ours.items()} == {
        key: result for key, (_, result, *_) in theirs.items()
    }
    for arguments in ours:
        operands = [ELEMENTS[argument] for argument in arguments]
        numbers = [np.arange(1, 65).astype(storage(operand)) for operand in operands]
        found = []
        for symbol, *_, result in (ours[arguments], theirs[arguments]):
            shape = ("tt.extern_elementwise", operands, [ELEMENTS[result]])
            found.append(compile_operation(*shape, cpu=BASELINE, symbol=symbol)(*numbers))
            assert cost(operation(*shape, 16, symbol=symbol)) >= 0
        np.testing.assert_array_equal(*found)


def library(symbol: str, operands: list[str], result: str) -> Callable[..., np.ndarray]:
    return compile_operation("tt.extern_elementwise", operands, [result], symbol=symbol)


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 1e-40, 3e38, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize(("type_", "name"), [("f32", "fp32"), ("f64", "fp64")])
def test_functions_of_the_parts_of_a_float(type_: str, name: str) -> None:
    x = np.array([*SPECIAL, *np.geomspace(1e-44, 1e38, 200), 5e-324, 1e-310])
    x = x.astype(storage(type_))
    y = np.roll(x, 3)
    references = {
        "isnan": np.isnan(x),
        "isinf": np.isinf(x),
        "signbit": np.signbit(x),
        "llrint": np.clip(np.nan_to_num(np.rint(x).astype(np.float64)), -(2.0**63), 2.0**63),
    }
    for function, reference in references.items():
        result = {"llrint": "i64", "signbit": "i32"}.get(function, "i1")
        found = library(f"anvil_{function}_{name}", [type_], result)(x)
        if function == "llrint":
            exact = [max(-(2**63), min(2**63 - 1, int(number))) for number in reference]
            reference = np.array(exact, np.int64)
        np.testing.assert_array_equal(found, reference, function)

    usual = np.isfinite(x) & (x != 0)
    exponents = library(f"anvil_ilogb_{name}", [type_], "i32")(x)
    np.testing.assert_array_equal(exponents[usual], np.frexp(x[usual])[1] - 1)
    np.testing.assert_array_equal(exponents[x == 0], -(2**31))
    np.testing.assert_array_equal(exponents[np.isinf(x)], 2**31 - 1)

    following = library(f"anvil_nextafter_{name}", [type_] * 2, type_)(x, y)
    np.testing.assert_array_equal(following, np.nextafter(x, y))
    for shift in (0, 1, -1, 130, -140, 1020, -1040, 2100, -2100, 2**31 - 1, -(2**31)):
        n = np.full(len(x), shift, np.int32)
        scaled = library(f"anvil_ldexp_{name}", [type_, "i32"], type_)(x, n)
        np.testing.assert_array_equal(scaled, np.ldexp(x, n), str(shift))


def test_remainder_of_the_nearest_quotient() -> None:
    generator = np.random.default_rng(4)
    edges = list(itertools.product([*SPECIAL, 1.5, 5e-324, 1.7e308], repeat=2))
    spread = generator.uniform(-1, 1, (4000, 2)) * 2.0 ** generator.integers(-500, 500, (4000, 2))
    ties = np.stack([generator.integers(-40, 40, 500) / 2, np.ones(500)], axis=1)
    x, y = np.concatenate([edges, spread, ties]).T
    found = library("anvil_remainder_fp64", ["f64"] * 2, "f64")(x, y)

    def reference(a: float, b: float) -> float:
        if math.isnan(a) or math.isnan(b) or math.isinf(a) or b == 0:
            return math.nan
        return math.remainder(a, b)

    exact = np.array([reference(a, b) for a, b in zip(x, y, strict=True)])
    np.testing.assert_array_equal(found, exact)
    np.testing.assert_array_equal(np.signbit(found[exact == 0]), np.signbit(exact[exact == 0]))


def test_conversions_with_a_rounding() -> None:
    x = np.array([*SPECIAL, 2.4, 2.6, -2.4, -2.6, 3.5, 1e10, -1e10], np.float32)
    functions = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}
    for rounding, function in functions.items():
        numbers = np.nan_to_num(function(x).astype(np.float64), nan=0.0)
        for kind, low, high in (("int", -(2**31), 2**31 - 1), ("uint", 0, 2**32 - 1)):
            found = library(f"anvil_float2{kind}_{rounding}_fp32", ["f32"], "i32")(x)
            exact = np.clip(numbers, low, high).astype(np.int64).astype(np.int32)
            np.testing.assert_array_equal(found, exact, f"{kind} {rounding}")


def test_bits_of_integers() -> None:
    x = np.array([0, 1, -1, 6, 1 << 30, -(1 << 31), 12345678], np.int32)
    texts = [format(int(number) & 0xFFFFFFFF, "032b") for number in x]
    references = {
        "clz": [32 - len(text.lstrip("0")) for text in texts],
        "popc": [text.count("1") for text in texts],
        "ffs": [text[::-1].find("1") + 1 for text in texts],
        "brev": [np.uint32(int(text[::-1], 2)).view(np.int32) for text in texts],
    }
    for name, reference in references.items():
        found = library(f"anvil_{name}_int32", ["i32"], "i32")(x)
        np.testing.assert_array_equal(found, reference, name)
    wide = library("anvil_clz_int64", ["i64"], "i32")(x.astype(np.int64) & 0xFFFFFFFF)
    np.testing.assert_array_equal(wide, np.array(references["clz"]) + 32)


def test_float8e4b15() -> None:
    codes = np.arange(256).astype(np.int8)
    found = library("anvil_from_float8e4b15_fp8e4b15", ["i8"], "f32")(codes)
    size = np.arange(256) & 0x7F
    exact = np.where(size < 8, size * 2.0**-17, (1 + size % 8 / 8) * 2.0 ** (size // 8 - 15))
    exact = np.where(np.arange(256) < 128, exact, -exact)
    np.testing.assert_array_equal(found, exact)
    back = library("anvil_to_float8e4b15_fp32", ["f32"], "i8")
    np.testing.assert_array_equal(back(found), codes)
    middles = ((exact[:127] + exact[1:128]) / 2).astype(np.float32)
    even = np.arange(127) + np.arange(127) % 2
    np.testing.assert_array_equal(back(middles), even)
    np.testing.assert_array_equal(back(np.array([2.0, np.inf, -9], np.float32)), [127, 127, -1])


@triton.jit
def _kernel(x_ptr, out_ptr, n, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    x = tl.load(x_ptr + index)
    y = portable.log1p(x) + portable.round(x) + cuda.round(x) + portable.pow(x, 2.0)
    y = tl.where(portable.isnan(y).to(tl.int1), 0.0, tl.clamp(y, -1.0, 1.0))
    y = y.to(tl.float8e4b15).to(tl.float16).to(tl.float8e4nv).to(tl.float32)
    high = portable.mulhi(n.to(tl.uint32), n.to(tl.uint32))
    tl.store(out_ptr + high + index, y)


def test_triton_finds_the_functions() -> None:
    """As a backend gives them to Triton's front end, whatever target it compiles for."""
    target = GPUTarget("cuda", 90, 32)
    backend = CUDABackend(target)
    options = backend.parse_options({"supported_fp8_dtypes": ("fp8e4nv", "fp8e4b15")})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "SIZE": "constexpr"}
    source = ASTSource(_kernel, signature, {(3,): 64})
    generation = {"convert_custom_types": libdevice.convert_custom_float8}
    modules = {"triton.language.extra.libdevice": libdevice}
    text = str(source.make_ir(target, options, generation, modules, context))
    assert '"anvil_log1p_fp32"' in text and '"__nv_roundf"' in text
    assert "__nv_log1pf" not in text
    assert lower_kernel(text).llvm_ir


def test_no_infinity_reaches_an_integer() -> None:
    """What PyTorch leaves undefined is defined here."""
    x = torch.tensor([float("inf"), float("nan")], dtype=torch.float64).numpy()
    found = library("anvil_llround_fp64", ["f64"], "i64")(x)
    np.testing.assert_array_equal(found, [2**63 - 1, 0])
