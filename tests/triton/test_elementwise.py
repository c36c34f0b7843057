# SPDX-License-Identifier: Apache-2.0
"""Element-wise operations of integers, comparisons and casts, against NumPy and Python."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import numpy as np
import pytest
from element_calls import BASELINE, CPUS, PREDICATES, compile_operation, operation, storage
from llvmlite import ir

from vllm_anvil.triton_backend.emit import HostCpu
from vllm_anvil.triton_backend.errors import UnsupportedKernel
from vllm_anvil.triton_backend.lower.elementwise import (
    IS_ELEMENTWISE,
    cost,
    emit_all,
    is_elementwise,
)
from vllm_anvil.triton_backend.ttir.model import Location

LANES = [None, 16]
INTEGERS = ["i8", "i16", "i32", "i64"]
GENERATOR = np.random.default_rng(7)


def bits(name: str) -> int:
    return int(name[1:])


def wrapped(number: int, width: int) -> int:
    number &= (1 << width) - 1
    return number - (1 << width) if number >> (width - 1) else number


def integer_pairs(name: str) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of the numbers where integers change, and random ones of every size."""
    width = bits(name)
    edges = [0, 1, 2, 3, 7, 10, 100, (1 << (width - 1)) - 1]
    edges = [*edges, *(-edge - 1 for edge in edges)]
    pairs = list(itertools.product(edges, edges))
    for _ in range(600):
        sizes = GENERATOR.integers(1, width, 2).tolist()
        pairs.append(tuple(int(GENERATOR.integers(-1 << size, 1 << size)) for size in sizes))
    x, y = zip(*((wrapped(a, width), wrapped(b, width)) for a, b in pairs), strict=True)
    return np.array(x, storage(name)), np.array(y, storage(name))


def expected(
    function: Callable[[int, int], int], x: np.ndarray, y: np.ndarray, name: str, signed: bool
) -> np.ndarray:
    width = bits(name)
    mask = -1 if signed else (1 << width) - 1
    numbers = [
        wrapped(function(int(a) & mask, int(b) & mask), width) for a, b in zip(x, y, strict=True)
    ]
    return np.array(numbers, storage(name))


def truncated(a: int, b: int) -> int:
    b = b or 1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def shifted(a: int, amount: int, width: int, name: str) -> int:
    """A negative amount is a great one: amounts have no sign."""
    if name == "shli":
        return a << amount if 0 <= amount < width else 0
    return a >> (amount if 0 <= amount < width else width)


SIGNED = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.minsi": min,
    "arith.maxsi": max,
    "arith.divsi": truncated,
    "arith.remsi": lambda a, b: a - truncated(a, b) * (b or 1),
    "arith.floordivsi": lambda a, b: a // (b or 1),
    "arith.ceildivsi": lambda a, b: -(-a // (b or 1)),
}
UNSIGNED = {
    "arith.minui": min,
    "arith.maxui": max,
    "arith.divui": truncated,
    "arith.remui": lambda a, b: a % (b or 1),
    "arith.ceildivui": lambda a, b: -(-a // (b or 1)),
}


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", [*SIGNED, *UNSIGNED])
def test_integer_arithmetic(name: str, cpu: HostCpu | None) -> None:
    for type_ in INTEGERS:
        x, y = integer_pairs(type_)
        signed = name in SIGNED
        reference = expected({**SIGNED, **UNSIGNED}[name], x, y, type_, signed)
        if name == "arith.ceildivsi":
            # The least number divided by -1 is taken as divided by 1.
            least = x == np.iinfo(x.dtype).min
            reference = np.where(least & (y == -1), x, reference)
        for lanes in LANES:
            result = compile_operation(name, [type_] * 2, [type_], lanes=lanes, cpu=cpu)(x, y)
            np.testing.assert_array_equal(result, reference, f"{type_} {lanes}")


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", ["shli", "shrsi", "shrui"])
def test_shifts_beyond_the_width_are_defined(name: str, cpu: HostCpu | None) -> None:
    for type_, lanes in itertools.product(INTEGERS, LANES):
        x, y = integer_pairs(type_)
        y = np.where(GENERATOR.random(len(y)) < 0.5, y % bits(type_), y)
        shift = functools.partial(shifted, width=bits(type_), name=name)
        reference = expected(shift, x, y, type_, signed=name == "shrsi")
        result = compile_operation(f"arith.{name}", [type_] * 2, [type_], lanes=lanes, cpu=cpu)
        np.testing.assert_array_equal(result(x, y), reference, f"{type_} {lanes}")


@pytest.mark.parametrize("name", ["arith.divsi", "arith.remui", "arith.shli", "arith.shrsi"])
@pytest.mark.parametrize("constant", [-1, 0, 1, 3, 8])
def test_known_operands(name: str, constant: int) -> None:
    for type_ in ("i32", "i64"):
        x, _ = integer_pairs(type_)
        y = np.full_like(x, constant)
        known = compile_operation(name, [type_] * 2, [type_], constants={1: constant})
        general = compile_operation(name, [type_] * 2, [type_])
        np.testing.assert_array_equal(known(x, y), general(x, y))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("type_", INTEGERS)
def test_products_of_twice_the_width(type_: str, lanes: int | None, cpu: HostCpu | None) -> None:
    x, y = integer_pairs(type_)
    width = bits(type_)

    def high(a: int, b: int) -> int:
        return (a * b) >> width

    for name, signed in (("mulsi", True), ("mului", False)):
        product = compile_operation(
            f"arith.{name}_extended", [type_] * 2, [type_] * 2, lanes=lanes, cpu=cpu
        )
        lower, upper = product(x, y)
        np.testing.assert_array_equal(lower, expected(lambda a, b: a * b, x, y, type_, True))
        np.testing.assert_array_equal(upper, expected(high, x, y, type_, signed))
    upper = compile_operation("tt.mulhiui", [type_] * 2, [type_], lanes=lanes, cpu=cpu)(x, y)
    np.testing.assert_array_equal(upper, expected(high, x, y, type_, False))


def test_sums_and_differences_with_carry() -> None:
    x, y = integer_pairs("i32")
    a, b = (z.view(np.uint32).astype(np.int64) for z in (x, y))
    total, carry = compile_operation("arith.addui_extended", ["i32"] * 2, ["i32", "i1"])(x, y)
    np.testing.assert_array_equal(total, x + y)
    np.testing.assert_array_equal(carry, a + b >= 1 << 32)
    rest, borrow = compile_operation("arith.subui_extended", ["i32"] * 2, ["i32", "i1"])(x, y)
    np.testing.assert_array_equal(rest, x - y)
    np.testing.assert_array_equal(borrow, a < b)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("lanes", LANES)
def test_counts_of_bits_and_absolute_values(lanes: int | None, cpu: HostCpu | None) -> None:
    for type_ in INTEGERS:
        x, _ = integer_pairs(type_)
        width = bits(type_)
        texts = [format(int(number) & ((1 << width) - 1), f"0{width}b") for number in x]
        references = {
            "math.ctpop": [text.count("1") for text in texts],
            "math.ctlz": [width - len(text.lstrip("0")) for text in texts],
            "math.cttz": [width - len(text.rstrip("0")) for text in texts],
            "math.absi": np.abs(x),
        }
        for name, reference in references.items():
            result = compile_operation(name, [type_], [type_], lanes=lanes, cpu=cpu)(x)
            np.testing.assert_array_equal(result, np.array(reference, x.dtype), f"{name} {type_}")


BOOLEANS = {
    "arith.andi": np.logical_and,
    "arith.ori": np.logical_or,
    "arith.xori": np.logical_xor,
    "arith.addi": np.logical_xor,
    "arith.muli": np.logical_and,
    "arith.minui": np.logical_and,
    "arith.maxui": np.logical_or,
    # As a signed number, true is -1.
    "arith.minsi": np.logical_or,
    "arith.maxsi": np.logical_and,
}


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("lanes", LANES)
def test_booleans(lanes: int | None, cpu: HostCpu | None) -> None:
    x, y = GENERATOR.integers(0, 2, (2, 64)).astype(np.uint8)
    for name, reference in BOOLEANS.items():
        result = compile_operation(name, ["i1"] * 2, ["i1"], lanes=lanes, cpu=cpu)(x, y)
        np.testing.assert_array_equal(result, reference(x, y), name)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("type_", ["i1", *INTEGERS])
def test_comparisons_of_integers(type_: str, lanes: int | None, cpu: HostCpu | None) -> None:
    if type_ == "i1":
        x, y = np.array([[0, 0, 1, 1], [0, 1, 0, 1]], np.uint8)
    else:
        x, y = integer_pairs(type_)
    for predicate, reference in PREDICATES.items():
        for sign in ("",) if predicate in ("eq", "ne") else ("s", "u"):
            compare = compile_operation(
                "arith.cmpi",
                [type_] * 2,
                ["i1"],
                lanes=lanes,
                cpu=cpu,
                predicate=sign + predicate,
            )
            a, b = x, y
            if type_ == "i1" and sign == "s":
                a, b = -x.astype(np.int8), -y.astype(np.int8)
            elif type_ != "i1" and sign == "u":
                a, b = (z.view(f"u{z.itemsize}") for z in (x, y))
            np.testing.assert_array_equal(compare(x, y), reference(a, b), sign + predicate)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("lanes", LANES)
def test_conversions_between_integers(lanes: int | None, cpu: HostCpu | None) -> None:
    for source, target in itertools.permutations(["i1", *INTEGERS], 2):
        x = np.array([0, 1], np.uint8) if source == "i1" else integer_pairs(source)[0]
        if bits(source) > bits(target):
            names = {"arith.trunci": x}
        else:
            signed = -x.astype(np.int8) if source == "i1" else x
            names = {"arith.extsi": signed, "arith.extui": x.view(f"u{x.itemsize}")}
        for name, numbers in names.items():
            reference = numbers & 1 if target == "i1" else numbers.astype(storage(target))
            result = compile_operation(name, [source], [target], lanes=lanes, cpu=cpu)(x)
            np.testing.assert_array_equal(result, reference, f"{name} {source} {target}")


@pytest.mark.parametrize("lanes", LANES)
def test_index_casts(lanes: int | None) -> None:
    x = np.array([-5, 0, 7, 1 << 40], np.int64)
    narrow = compile_operation("arith.index_cast", ["index"], ["i32"], lanes=lanes)(x)
    np.testing.assert_array_equal(narrow, x.astype(np.int32))
    wide = compile_operation("arith.index_cast", ["i32"], ["index"], lanes=lanes)(narrow)
    np.testing.assert_array_equal(wide, narrow)
    unsigned = compile_operation("arith.index_castui", ["i32"], ["index"], lanes=lanes)(narrow)
    np.testing.assert_array_equal(unsigned, narrow.view(np.uint32))


@pytest.mark.parametrize("lanes", LANES)
def test_pointers(lanes: int | None) -> None:
    x = np.array([4096, 1 << 46, 8], np.int64)
    for source, target in (("i64", "*f32"), ("*f32", "i64"), ("*f32", "*i32")):
        names = {"i64": "tt.int_to_ptr"}.get(source, "tt.ptr_to_int")
        name = "tt.bitcast" if target == "*i32" else names
        np.testing.assert_array_equal(
            compile_operation(name, [source], [target], lanes=lanes)(x), x
        )
    offsets = np.array([-3, 5, 1 << 30], np.int32)
    for type_, size in (("f32", 4), ("bf16", 2), ("i1", 1)):
        add = compile_operation("tt.addptr", [f"*{type_}", "i32"], [f"*{type_}"], lanes=lanes)
        np.testing.assert_array_equal(add(x, offsets), x + offsets.astype(np.int64) * size)
    later = compile_operation("arith.cmpi", ["*f32"] * 2, ["i1"], lanes=lanes, predicate="ult")
    np.testing.assert_array_equal(later(x, x[::-1]), x < x[::-1])


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("lanes", [None, 1, 2, 4, 16, 64])
def test_select(lanes: int | None, cpu: HostCpu | None) -> None:
    condition = GENERATOR.integers(0, 2, 64).astype(np.uint8)
    for type_ in ("i1", "i8", "i32", "i64", "f16", "bf16", "f32", "f64", "f8E5M2", "*f32"):
        x, y = GENERATOR.integers(0, 2, (2, 64)).astype(storage(type_))
        select = compile_operation(
            "arith.select", ["i1", type_, type_], [type_], lanes=lanes, cpu=cpu
        )
        np.testing.assert_array_equal(select(condition, x, y), np.where(condition, x, y), type_)


def test_bitcasts() -> None:
    numbers = GENERATOR.integers(-(1 << 62), 1 << 62, 64)
    for source, target in (
        ("f32", "i32"),
        ("i16", "f16"),
        ("f16", "bf16"),
        ("bf16", "i16"),
        ("i8", "f8E4M3FN"),
        ("f64", "i64"),
        ("i32", "i32"),
    ):
        x = numbers.astype(f"i{np.dtype(storage(source)).itemsize}").view(storage(source))
        for name, lanes in itertools.product(("arith.bitcast", "tt.bitcast"), LANES):
            result = compile_operation(name, [source], [target], lanes=lanes)(x)
            assert result.tobytes() == x.tobytes(), (source, target)


def test_what_is_not_understood_is_refused_with_its_place() -> None:
    place = Location("kernel.py", 12)

    def refusal(name: str, operands: list[str], results: list[str], **attributes: str) -> str:
        op = operation(name, operands, results, 16, **attributes)
        op.location = place
        module = ir.Module()
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), []), "f")
        builder = ir.IRBuilder(function.append_basic_block())
        value = ir.Constant(ir.VectorType(ir.IntType(32), 16), [0] * 16)
        with pytest.raises(UnsupportedKernel) as error:
            emit_all(builder, op, [value] * len(operands))
        assert str(place) in str(error.value) and name in str(error.value)
        return error.value.reason

    assert "odd" in refusal("arith.cmpi", ["i32"] * 2, ["i1"], predicate="odd")
    assert "no element-wise" in refusal("tt.dot", ["i32"], ["i32"])
    assert "anvil_nothing_fp32" in refusal(
        "tt.extern_elementwise", ["i32"], ["i32"], symbol="anvil_nothing_fp32"
    )
    assert "width" in refusal("tt.bitcast", ["i32"], ["i64"])
    assert "f8E3M4" in refusal("tt.fp_to_fp", ["f8E3M4"], ["f32"])
    assert not is_elementwise("tt.dot")


# Operations of floats, with their numbers of operands.
FLOAT_OPERATIONS = {
    name: 2 if name.rpartition(".")[2] in ("powf", "atan2", "copysign") or "arith" in name else 1
    for name in sorted(IS_ELEMENTWISE)
    if name.startswith("math.") and name not in ("math.absi", "math.fpowi")
    if not name.startswith("math.ct")
}
FLOAT_OPERATIONS["math.fma"] = 3


@pytest.mark.parametrize("name", FLOAT_OPERATIONS)
def test_no_function_is_called(name: str) -> None:
    """For every width: compiling links the code to nothing but memory copies."""
    results = 2 if name == "math.sincos" else 1
    kind = "i1" if name in ("math.isnan", "math.isinf", "math.isfinite") else None
    for type_, lanes in itertools.product(("f16", "bf16", "f32", "f64"), (None, 1, 8)):
        compile_operation(
            name,
            [type_] * FLOAT_OPERATIONS[name],
            [kind or type_] * results,
            lanes=lanes,
            cpu=BASELINE,
        )
        assert cost(operation(name, [type_], [type_], lanes)) >= 0
