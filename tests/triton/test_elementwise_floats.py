# SPDX-License-Identifier: Apache-2.0
"""Arithmetic, comparisons and conversions of floats, bit by bit."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from element_calls import CPUS, PREDICATES, compile_operation, storage
from float_formats import DTYPES, rounded, samples, values

from vllm_anvil.triton_backend.emit import HostCpu

LANES = [None, 16]
FLOATS = {**DTYPES, "f32": torch.float32, "f64": torch.float64}
WIDE = ["f16", "bf16", "f32", "f64"]
FP8 = ["f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E5M2FNUZ"]
GENERATOR = np.random.default_rng(11)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-40, 6e-8, 65504.0]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    np.seterr(all="ignore")


def stored(numbers: torch.Tensor, type_: str) -> np.ndarray:
    """As the arrays of element_calls hold it."""
    if type_ in ("f16", "f32", "f64"):
        return numbers.numpy()
    bits = numbers.view(torch.uint8 if numbers.element_size() == 1 else torch.int16).numpy()
    return bits.view(storage(type_))


def numbers_of(array: np.ndarray, type_: str) -> np.ndarray:
    """As float64."""
    return array.astype(np.float64) if type_ in ("f16", "f32", "f64") else values(type_)[array]


def assert_same(result: np.ndarray, reference: np.ndarray, message: str = "") -> None:
    """Equal numbers, also the signs of zeros; NaN beside NaN."""
    np.testing.assert_array_equal(result, reference, message)
    both = ~np.isnan(reference)
    np.testing.assert_array_equal(
        np.signbit(result[both]), np.signbit(reference[both]), f"signs: {message}"
    )


def pairs(type_: str) -> tuple[torch.Tensor, torch.Tensor]:
    special = list(itertools.product(SPECIAL, SPECIAL))
    random = GENERATOR.standard_normal((3000, 2)) * 2.0 ** GENERATOR.integers(-20, 15, (3000, 2))
    x, y = torch.tensor(np.concatenate([special, random])).to(FLOATS[type_]).T
    return x.contiguous(), y.contiguous()


def remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """PyTorch's own gives NaN where x / y overflows."""
    return torch.from_numpy(np.fmod(x.numpy(), y.numpy()))


ARITHMETIC = {
    "arith.addf": torch.add,
    "arith.subf": torch.sub,
    "arith.mulf": torch.mul,
    "arith.divf": torch.div,
    "tt.precise_divf": torch.div,
    "arith.remf": remainder,
    "arith.maximumf": torch.maximum,
    "arith.minimumf": torch.minimum,
}


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name: str, cpu: HostCpu | None) -> None:
    for type_, lanes in itertools.product(WIDE, LANES):
        x, y = pairs(type_)
        wide = torch.float32 if x.element_size() == 2 else x.dtype
        reference = ARITHMETIC[name](x.to(wide), y.to(wide)).to(x.dtype)
        if name in ("arith.maximumf", "arith.minimumf"):
            # PyTorch may return either zero; -0 is the lesser.
            negative = torch.signbit(x) & torch.signbit(y)
            if name == "arith.minimumf":
                negative = torch.signbit(x) | torch.signbit(y)
            zero = torch.where(negative, -0.0, 0.0).to(x.dtype)
            reference = torch.where((x == 0) & (y == 0), zero, reference)
        result = compile_operation(name, [type_] * 2, [type_], lanes=lanes, cpu=cpu)(
            stored(x, type_), stored(y, type_)
        )
        reference_numbers = reference.to(torch.float64).numpy()
        assert_same(numbers_of(result, type_), reference_numbers, f"{type_} {lanes}")


@pytest.mark.parametrize("cpu", CPUS)
def test_maximum_and_minimum_beside_nan(cpu: HostCpu | None) -> None:
    for type_, lanes in itertools.product(WIDE, LANES):
        x, y = pairs(type_)
        a, b = (z.to(torch.float64).numpy() for z in (x, y))
        for name, reference in (("arith.maxnumf", np.fmax), ("arith.minnumf", np.fmin)):
            call = compile_operation(name, [type_] * 2, [type_], lanes=lanes, cpu=cpu)
            result = numbers_of(call(stored(x, type_), stored(y, type_)), type_)
            np.testing.assert_array_equal(result, reference(a, b), f"{name} {type_} {lanes}")


def test_clamp() -> None:
    x = np.array([-3, -1, 0.25, 1, 7, np.nan, np.inf, -np.inf], np.float32)
    low, high = np.full_like(x, -1), np.full_like(x, 1)
    for mode, of_nan in (("none", -1.0), ("all", np.nan)):
        clamp = compile_operation("tt.clampf", ["f32"] * 3, ["f32"], propagateNan=mode)
        reference = np.where(np.isnan(x), of_nan, np.clip(x, -1, 1))
        np.testing.assert_array_equal(clamp(x, low, high), reference)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("type_", WIDE)
def test_comparisons(type_: str, cpu: HostCpu | None) -> None:
    x, y = pairs(type_)
    a, b = (z.to(torch.float64).numpy() for z in (x, y))
    unordered = np.isnan(a) | np.isnan(b)
    references = {"ord": ~unordered, "uno": unordered, "true": a == a, "false": a != a}
    references["true"], references["false"] = np.ones(len(a), bool), np.zeros(len(a), bool)
    for predicate, compare in PREDICATES.items():
        references[f"o{predicate}"] = compare(a, b) & ~unordered
        references[f"u{predicate}"] = compare(a, b) | unordered
    for (predicate, reference), lanes in itertools.product(references.items(), LANES):
        call = compile_operation(
            "arith.cmpf", [type_] * 2, ["i1"], lanes=lanes, cpu=cpu, predicate=predicate
        )
        result = call(stored(x, type_), stored(y, type_))
        np.testing.assert_array_equal(result, reference, f"{predicate} {lanes}")


@pytest.mark.parametrize("type_", [*WIDE, *FP8])
def test_signs_by_bits(type_: str) -> None:
    """NaN keeps its payload, and every code of an 8-bit float its size."""
    width = 8 * np.dtype(storage(type_)).itemsize
    unsigned = np.dtype(f"u{width // 8}")
    codes = GENERATOR.integers(0, 1 << min(width, 63), 4096, dtype=np.uint64).astype(unsigned)
    other = GENERATOR.permutation(codes)
    sign = unsigned.type(1 << (width - 1))
    references = {
        "math.absf": codes & ~sign,
        "arith.negf": codes ^ sign,
        "math.copysign": (codes & ~sign) | (other & sign),
    }
    for (name, reference), lanes in itertools.product(references.items(), LANES):
        arrays = (codes, other) if name == "math.copysign" else (codes,)
        call = compile_operation(name, [type_] * len(arrays), [type_], lanes=lanes)
        result = call(*(array.view(storage(type_)) for array in arrays))
        np.testing.assert_array_equal(result.view(unsigned), reference, name)


@pytest.mark.parametrize("cpu", CPUS)
def test_rounding_to_integers(cpu: HostCpu | None) -> None:
    def half_away(x: np.ndarray) -> np.ndarray:
        size = np.abs(x)
        return np.copysign(np.floor(size) + (size - np.floor(size) >= 0.5), x)

    references = {
        "math.floor": np.floor,
        "math.ceil": np.ceil,
        "math.trunc": np.trunc,
        "math.roundeven": np.rint,
        "math.round": half_away,
    }
    below_half = [0.49999997, 0.49999999999999994, 0.5, 8388609.0, 4503599627370497.0, 2.0**60]
    for type_, lanes in itertools.product(WIDE, LANES):
        x = torch.tensor([*SPECIAL, *below_half, *(-z for z in below_half)], dtype=torch.float64)
        x = torch.cat([x, torch.arange(-40, 40) / 8]).to(FLOATS[type_])
        for name, reference in references.items():
            call = compile_operation(name, [type_], [type_], lanes=lanes, cpu=cpu)
            result = numbers_of(call(stored(x, type_)), type_)
            numbers = x.to(torch.float64).numpy()
            exact = np.where(np.isinf(numbers), numbers, reference(numbers))
            assert_same(result, exact, f"{name} {type_} {lanes}")


def test_fused_products() -> None:
    """Rounded once: an ordinary product and sum differ in most of these."""
    for type_ in WIDE:
        x, y = pairs(type_)
        z = -(x.to(torch.float64) * y.to(torch.float64)).to(x.dtype)
        result = compile_operation("math.fma", [type_] * 3, [type_])(
            *(stored(a, type_) for a in (x, y, z))
        )
        a, b, c = (w.to(torch.float64).numpy() for w in (x, y, z))
        finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
        exact = [
            Fraction(p) * Fraction(q) + Fraction(r)
            for p, q, r in zip(a[finite], b[finite], c[finite], strict=True)
        ]
        reference = np.array([float(number) for number in exact])
        if type_ == "f32":
            reference = reference.astype(np.float32).astype(np.float64)
        elif type_ in DTYPES:
            reference = rounded(reference, type_, toward_zero=False, saturates=False)
        np.testing.assert_array_equal(numbers_of(result, type_)[finite], reference, type_)


def test_fused_products_that_a_small_addend_decides() -> None:
    """The product lies in the middle of two numbers, the addend is below float64's precision."""
    x = torch.tensor([1.5, -1.5, 1.5, 1.0078125] * 2).to(torch.bfloat16)
    y = torch.tensor([1.0078125] * 3 + [1.5]).to(torch.bfloat16).repeat(2)
    addends = [2.0**-70, -(2.0**-70), -(2.0**-70), 0.0, 2.0**-126, 2.0**-133, 1.0, -(2.0**-100)]
    z = torch.tensor(addends).to(torch.bfloat16)
    result = compile_operation("math.fma", ["bf16"] * 3, ["bf16"])(
        *(stored(one, "bf16") for one in (x, y, z))
    )
    step = Fraction(1, 128)
    expected = []
    for a, b, c in zip(x.tolist(), y.tolist(), z.tolist(), strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        binade = 2 if abs(exact) >= 2 else 1
        expected.append(float(round(exact / (step * binade)) * step * binade))
    assert numbers_of(result, "bf16").tolist() == expected


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("source", [*DTYPES])
def test_widening_is_exact(source: str, cpu: HostCpu | None) -> None:
    """Every code."""
    exact = values(source)
    codes = np.arange(len(exact)).astype(f"u{len(exact).bit_length() // 8}").view(storage(source))
    targets = ["f32", "f64"] + (["f16", "bf16"] if source in FP8 else [])
    for target, lanes in itertools.product(targets, LANES):
        name = "tt.fp_to_fp" if source in FP8 else "arith.extf"
        result = compile_operation(name, [source], [target], lanes=lanes, cpu=cpu)(codes)
        assert_same(numbers_of(result, target), exact, f"{target} {lanes}")


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("rounding", ["rtne", "rtz"])
@pytest.mark.parametrize("target", [*DTYPES])
def test_narrowing_rounds_once(target: str, rounding: str, cpu: HostCpu | None) -> None:
    x = samples(target)
    for source, lanes in itertools.product(("f64", "f32", "f16", "bf16"), LANES):
        if source == target:
            continue
        given = torch.tensor(x).to(FLOATS[source])
        numbers = given.to(torch.float64).numpy()
        toward_zero = rounding == "rtz"
        exact = rounded(numbers, target, toward_zero, saturates=target in FP8)
        if target.endswith("FNUZ"):
            exact = np.where(exact == 0, 0.0, exact)
        call = compile_operation(
            "tt.fp_to_fp", [source], [target], lanes=lanes, cpu=cpu, rounding=rounding
        )
        result = numbers_of(call(stored(given, source)), target)
        assert_same(result, exact, f"{source} {lanes}")
        not_a_number = stored(torch.full((4,), float("nan"), dtype=FLOATS[source]), source)
        assert np.isnan(numbers_of(call(not_a_number), target)).all()


@pytest.mark.parametrize("target", FP8)
def test_8_bit_floats_as_in_pytorch_within_their_range(target: str) -> None:
    greatest = torch.finfo(DTYPES[target]).max
    x = torch.tensor(samples(target)).to(torch.float32)
    x = x[x.abs() <= greatest]
    codes = compile_operation("tt.fp_to_fp", ["f32"], [target], rounding="rtne")(x.numpy())
    np.testing.assert_array_equal(codes, stored(x.to(DTYPES[target]), target))


def test_float64_to_float32() -> None:
    x = np.concatenate([samples("bf16"), [1 + 2.0**-24, 1 + 2.0**-24 + 2.0**-50, 1e-46, 4e38]])
    nearest = compile_operation("arith.truncf", ["f64"], ["f32"])(x)
    np.testing.assert_array_equal(nearest, x.astype(np.float32))
    toward_zero = compile_operation("tt.fp_to_fp", ["f64"], ["f32"], rounding="rtz")(x)
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(x)
    reference = np.where(beyond, np.nextafter(nearest, np.float32(0)), nearest)
    np.testing.assert_array_equal(toward_zero, reference)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("source", ["i1", "i8", "i16", "i32", "i64"])
def test_integers_as_floats(source: str, cpu: HostCpu | None) -> None:
    width = int(source[1:])
    dtype = np.dtype(storage(source))
    if source == "i1":
        x = np.array([0, 1], dtype)
    else:
        edges = [0, 1, 2**24 + 1, 2**53 + 1, 257, 65520, 2 ** (width - 1) - 1]
        x = np.array([*edges, *(-edge - 1 for edge in edges)]).astype(dtype)
        x = np.concatenate([x, GENERATOR.integers(-(2**62), 2**62, 1000).astype(dtype)])
    for (name, target), lanes in itertools.product(
        itertools.product(("arith.sitofp", "arith.uitofp"), WIDE), LANES
    ):
        signed = name == "arith.sitofp"
        numbers = x if signed or source == "i1" else x.view(f"u{dtype.itemsize}")
        numbers = -x.astype(np.int8) if signed and source == "i1" else numbers
        if target == "f64":
            reference = numbers.astype(np.float64)
        else:
            single = torch.from_numpy(numbers.astype(np.float32))
            reference = single.to(FLOATS[target]).to(torch.float64).numpy()
        call = compile_operation(name, [source], [target], lanes=lanes, cpu=cpu)
        result = numbers_of(call(x), target)
        np.testing.assert_array_equal(result, reference, f"{name} {target} {lanes}")


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("target", ["i8", "i16", "i32", "i64"])
def test_floats_as_integers_saturate(target: str, cpu: HostCpu | None) -> None:
    width = int(target[1:])
    edges = [
        0.0,
        0.99,
        1.5,
        127.0,
        128.0,
        255.5,
        256.0,
        65535.0,
        2.0**31,
        2.0**32,
        2.0**63,
        2.0**64,
    ]
    edges = [*edges, *np.nextafter(edges, 0), 1e300, np.inf, 1e5, 12345.678]
    numbers = np.array([*edges, *(-edge for edge in edges), np.nan])
    for (name, source), lanes in itertools.product(
        itertools.product(("arith.fptosi", "arith.fptoui"), WIDE), LANES
    ):
        low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
        if name == "arith.fptoui":
            low, high = 0, 2**width - 1
        x = torch.tensor(numbers).to(FLOATS[source])
        exact = [
            0 if number != number else min(max(number, low), high)
            for number in x.to(torch.float64).tolist()
        ]
        reference = np.array([int(number) & (2**width - 1) for number in exact], np.uint64)
        call = compile_operation(name, [source], [target], lanes=lanes, cpu=cpu)
        result = call(stored(x, source)).astype(np.int64).view(np.uint64)
        result = result & np.uint64(2**width - 1)
        np.testing.assert_array_equal(result, reference, f"{name} {source} {lanes}")
