# SPDX-License-Identifier: Apache-2.0
"""Launching compiled kernels: grids, arguments, and what goes wrong.

The kernels are LLVM IR (kernel_objects.py), so nothing here depends on the compiler.
"""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from kernel_objects import INT_ARRAY, SLOTS, Launchable, adder, checker, printer, spinner, zeros
from torch._subclasses.fake_tensor import FakeTensorMode

import vllm_anvil.device  # noqa: F401  registers torch.anvil

DEVICES = ("anvil", "cpu")

with FakeTensorMode():
    FAKE = torch.zeros(1, dtype=torch.int32)


# ------------------------------------------------------------------------- grids


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("grid", [(1, 1, 1), (7, 1, 1), (3, 5, 2), (1, 1, 9), (4000, 1, 1)])
def test_every_program_runs_once(device: str, grid: tuple[int, int, int]) -> None:
    count = grid[0] * grid[1] * grid[2]
    array = zeros(count, device)
    kernel = adder()
    kernel(grid, array, 2)
    kernel(grid, array, 3)
    assert torch.equal(array.cpu(), torch.full((count,), 5, dtype=torch.int32))


@pytest.mark.parametrize("grid", [(0, 1, 1), (3, 0, 1), (1, 1, 0)])
def test_an_empty_grid_runs_nothing(grid: tuple[int, int, int]) -> None:
    array = zeros(4)
    adder()(grid, array, 1)
    assert array.cpu().tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "grid, words",
    [
        ((-1, 1, 1), "extent x of the grid is -1"),
        ((1, 1 << 31, 1), "extent y of the grid is 2147483648"),
        ((1 << 20, 1 << 20, 1 << 20), "more than 2147483648 programs"),
    ],
)
def test_impossible_grids(grid: tuple[int, int, int], words: str) -> None:
    with pytest.raises(ValueError, match=f"Triton kernel add: .*{words}"):
        adder()(grid, zeros(1), 1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("length", [1, 100, 20_000])
def test_long_and_short_programs(device: str, length: int) -> None:
    """Inline and shared among threads, with scratch; lengths that change between launches."""
    kernel = spinner()
    for steps in (1, length, 3):
        array = torch.zeros(300, dtype=torch.int64, device=device)
        kernel((300, 1, 1), array, steps)
        assert (array == steps).all()


# ------------------------------------------------------------------------- arguments


def test_values_arrive_in_their_own_width() -> None:
    values = {
        "i8": (-5, torch.int8),
        "i16": (-300, torch.int16),
        "i32": (0xFFFFFFFF, torch.int32),
        "i64": (1 << 63, torch.int64),
        "f16": (0.333, torch.float16),
        "bf16": (0.333, torch.bfloat16),
        "f32": (0.333, torch.float32),
        "f64": (0.333, torch.float64),
        "i1": (True, torch.bool),
    }
    signature = {"array": "*i64", "n": "i32", **{f"v_{name}": name for name in values}}
    arguments = [INT_ARRAY, ("i32", False, False), *((name, False, False) for name in values)]
    array = torch.zeros(len(values) + 1, dtype=torch.int64, device="anvil")
    kernel = Launchable(SLOTS, "slots", signature, arguments)
    kernel((1, 1, 1), array, len(values) + 1, *(value for value, _ in values.values()))
    slots = array.cpu()[1:]
    for slot, (value, dtype) in zip(slots.split(1), values.values(), strict=True):
        if isinstance(value, int) and value >= 1 << 31:  # unsigned numbers keep their bits
            value -= 1 << (8 * dtype.itemsize)
        assert slot.view(dtype)[:1].item() == torch.tensor(value, dtype=dtype).item(), dtype


Pair = namedtuple("Pair", "left right")


def test_constants_are_skipped_and_tuples_flattened() -> None:
    signature = {
        "array": "*i64",
        "n": "i32",
        "BLOCK": "constexpr",
        "pair": ("i32", ("i64", "constexpr")),
        "last": "i32",
    }
    integers = [("i32", False, False), ("i64", False, False), ("i32", False, False)]
    kernel = Launchable(SLOTS, "slots", signature, [INT_ARRAY, ("i32", False, False), *integers])
    array = torch.zeros(4, dtype=torch.int64, device="anvil")
    kernel((1, 1, 1), array, 4, torch.float32, Pair(7, [8, None]), 9)
    assert array.cpu()[1:].tolist() == [7, 8, 9]
    with pytest.raises(TypeError, match="argument pair takes a tuple of 2, not tuple"):
        kernel((1, 1, 1), array, 4, None, (1, 2, 3), 9)
    with pytest.raises(TypeError, match="argument pair.1.0 takes an integer, not str"):
        kernel((1, 1, 1), array, 4, None, (1, ("x", None)), 9)


def test_pointers_of_every_kind() -> None:
    import triton

    class Buffer:
        def data_ptr(self) -> int:
            return array.data_ptr()

    array = torch.zeros(8, dtype=torch.int32, device="anvil")
    kernel = adder()
    kernel((2, 1, 1), array[3:], 1)
    kernel((2, 1, 1), triton.reinterpret(array.view(torch.float32), triton.language.int32), 10)
    kernel((2, 1, 1), array.data_ptr(), 100)
    kernel((2, 1, 1), Buffer(), 1000)
    kernel((1, 1, 1), torch.nn.Parameter(array[7:], requires_grad=False), 5)
    assert array.cpu().tolist() == [1110, 1110, 0, 1, 1, 0, 0, 5]


@pytest.mark.parametrize("missing", [None, 0])
def test_null_pointers(missing: object) -> None:
    signature = {"array": "*i64", "n": "i32", "other": "*i32"}
    arguments = [INT_ARRAY, ("i32", False, False), ("ptr", True, False)]
    array = torch.full((2,), -1, dtype=torch.int64, device="anvil")
    Launchable(SLOTS, "slots", signature, arguments)((1, 1, 1), array, 2, missing)
    assert array.cpu().tolist() == [2, 0]


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        (("x", 1), TypeError, "argument array takes a tensor or an address, not str"),
        ((1.5, 1), TypeError, "argument array takes a tensor or an address, not float"),
        ((zeros(1), "x"), TypeError, "argument n takes an integer, not str"),
        ((zeros(1), 1.0), TypeError, "argument n takes an integer, not float"),
        ((zeros(1), 1 << 32), OverflowError, "argument n is 4294967296, which 32 bits do not"),
        ((torch.empty(1, device="meta"), 1), TypeError, "argument array is a tensor on meta"),
        ((torch.eye(2).to_sparse(), 1), TypeError, "argument array is a tensor on cpu with layout"),
        ((FAKE, 1), TypeError, "argument array is a tensor without memory"),
        ((zeros(1),), TypeError, "takes 11 positional arguments, got 10"),
    ],
)
def test_wrong_arguments(arguments: tuple[object, ...], error: type, words: str) -> None:
    with pytest.raises(error, match=f"Triton kernel add: .*{words}"):
        adder()((1, 1, 1), *arguments)


def test_a_function_that_was_never_loaded() -> None:
    kernel = adder()
    with pytest.raises(ValueError, match="4096 is no loaded function"):
        kernel.launcher(1, 1, 1, 0, 4096, None, None, None, None, zeros(1), 1)


def test_signature_and_code_must_agree() -> None:
    with pytest.raises(ValueError, match="no argument for n: i32"):
        Launchable(SLOTS, "slots", {"a": "*i32", "n": "i32"}, [INT_ARRAY])
    with pytest.raises(ValueError, match="takes 1 arguments more"):
        Launchable(SLOTS, "slots", {"a": "*i32"}, [INT_ARRAY, ("i32", False, False)])
    with pytest.raises(ValueError, match="argument for a: i64 is of type ptr"):
        Launchable(SLOTS, "slots", {"a": "i64"}, [INT_ARRAY])


# ------------------------------------------------------------------------- failures and print


def test_a_failed_assertion_is_raised_by_the_next_wait() -> None:
    array, kernel = zeros(100), checker()
    kernel((100, 1, 1), array, 3)
    after = zeros(4)
    adder()((4, 1, 1), after, 1)
    with pytest.raises(RuntimeError, match="'check' failed: kernel.py:7: x must not be n"):
        torch.anvil.synchronize()
    assert after.tolist() == [1, 1, 1, 1]
    kernel((3, 1, 1), array, 3)
    torch.anvil.synchronize()


def test_a_failed_assertion_on_the_cpu_is_raised_at_once() -> None:
    with pytest.raises(RuntimeError, match="Triton kernel check failed: kernel.py:7: x must"):
        checker()((8, 1, 1), zeros(8, "cpu"), 3)


def test_prints_come_whole(capfd: pytest.CaptureFixture[str]) -> None:
    printer()((500, 1, 1))
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == sorted(f"program {i}" for i in range(500))
