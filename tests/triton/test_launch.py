# SPDX-License-Identifier: Apache-2.0
"""Launching compiled kernels: arguments, where and when they run, and what goes wrong.

The kernels are LLVM IR (kernel_objects.py), so nothing here depends on the compiler.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from kernel_objects import INT_ARRAY, SLOTS, Launchable, adder, checker, printer, spinner

import vllm_anvil.device  # noqa: F401  registers torch.anvil

DEVICES = ("anvil", "cpu")


def zeros(count: int, device: str = "anvil") -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)


def is_idle() -> bool:
    return torch.anvil.current_stream().query()


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


# ------------------------------------------------------------------------- when and where


def test_a_launch_is_queued() -> None:
    array = zeros(1)
    torch.anvil.synchronize()
    torch.anvil._sleep(100)
    adder()((1, 1, 1), array, 1)
    assert not is_idle()
    assert array.item() == 1


def test_an_address_in_device_memory_is_queued_too() -> None:
    array = zeros(1)
    torch.anvil.synchronize()
    torch.anvil._sleep(100)
    adder()((1, 1, 1), array.data_ptr(), 1)
    assert not is_idle()
    assert array.item() == 1


def test_the_current_stream_is_used() -> None:
    array, side = zeros(1), torch.anvil.Stream()
    torch.anvil.synchronize()
    with torch.anvil.stream(side):
        torch.anvil._sleep(100)
        adder()((1, 1, 1), array, 1)
    assert is_idle() and not side.query()
    side.synchronize()
    assert array.item() == 1


def test_memory_and_code_outlive_what_is_queued() -> None:
    result = zeros(1)
    kernel = adder()
    kernel((1, 1, 1), result, 1)
    torch.anvil._sleep(50)
    kernel((1, 1, 1), zeros(1), 1)  # a tensor that is gone at once
    kernel((1, 1, 1), result, 1)
    del kernel
    gc.collect()
    later = [torch.ones(1, dtype=torch.int32, device="anvil") for _ in range(20)]
    assert result.item() == 2
    assert all(one.item() == 1 for one in later)


def test_memory_of_others_is_held_until_the_kernel_has_run() -> None:
    host = torch.zeros(1 << 20, dtype=torch.int32)
    foreign = torch.from_dlpack(host.__dlpack__()).to("anvil")
    torch.anvil._sleep(50)
    adder()((1, 1, 1), foreign, 3)
    kept = foreign[:1]
    del host, foreign
    assert kept.item() == 3


def test_cpu_tensors_run_at_once() -> None:
    array = zeros(3, "cpu")
    torch.anvil._sleep(100)
    adder()((3, 1, 1), array, 1)
    assert array.tolist() == [1, 1, 1] and not is_idle()
    torch.anvil.synchronize()


TWO_ARRAYS = """
define i32 @both(ptr %args, ptr %launch, i32 %x, i32 %y, i32 %z) {
  %from = load ptr, ptr %args
  %tp = getelementptr i8, ptr %args, i64 8
  %to = load ptr, ptr %tp
  %s = getelementptr i32, ptr %from, i32 %x
  %v = load i32, ptr %s
  %d = getelementptr i32, ptr %to, i32 %x
  store i32 %v, ptr %d
  ret i32 0
}
"""


def copier() -> Launchable:
    arguments = [("ptr", True, False), ("ptr", False, True)]
    return Launchable(TWO_ARRAYS, "both", {"source": "*i32", "target": "*i32"}, arguments)


def test_pinned_memory_goes_with_the_command() -> None:
    source = torch.arange(5, dtype=torch.int32).pin_memory()
    target = zeros(5)
    torch.anvil.synchronize()
    torch.anvil._sleep(100)
    copier()((5, 1, 1), source, target)
    assert not is_idle()
    del source
    reused = torch.full((5,), 9, dtype=torch.int32).pin_memory()
    assert target.tolist() == [0, 1, 2, 3, 4]
    assert reused.tolist() == [9] * 5


def test_pageable_memory_makes_the_caller_wait() -> None:
    source = torch.arange(5, dtype=torch.int32, device="anvil")
    target = torch.zeros(5, dtype=torch.int32)
    torch.anvil._sleep(50)
    copier()((5, 1, 1), source, target)
    assert target.tolist() == [0, 1, 2, 3, 4]


def test_memory_that_is_shared_until_written() -> None:
    original = torch.zeros(3, dtype=torch.int32)
    copy = torch._lazy_clone(original)
    adder()((3, 1, 1), copy, 1)
    assert copy.tolist() == [1, 1, 1]
    assert original.tolist() == [0, 0, 0]


def test_a_graph_records_and_replays() -> None:
    array = zeros(4)
    kernel = adder()
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        kernel((4, 1, 1), array, 1)
        kernel((2, 1, 1), array, 10)
    assert array.tolist() == [0, 0, 0, 0]
    names = [node.name for node in graph.nodes()]
    for _ in range(3):
        graph.replay()
    assert array.tolist() == [33, 33, 3, 3]
    assert names == ["add", "add"]


def test_a_graph_keeps_the_code() -> None:
    array = zeros(4)
    graph = torch.anvil.Graph()
    kernel = adder()
    with torch.anvil.graph(graph):
        kernel((4, 1, 1), array, 1)
    del kernel
    gc.collect()
    graph.replay()
    assert array.tolist() == [1, 1, 1, 1]


def test_pageable_memory_cannot_be_captured() -> None:
    source, target, kernel = zeros(4), zeros(4, "cpu"), copier()
    graph = torch.anvil.Graph()
    with (
        pytest.raises(RuntimeError, match="a CPU tensor that is not pinned|not pinned"),
        torch.anvil.graph(graph),
    ):
        kernel((4, 1, 1), source, target)


def test_hooks_are_called_around_the_launch() -> None:
    seen: list[object] = []
    array = zeros(2, "cpu")
    adder()(
        (2, 1, 1),
        array,
        1,
        metadata={"name": "add"},
        enter=lambda facts: seen.append(("enter", facts, array.tolist())),
        leave=lambda facts: seen.append(("exit", facts, array.tolist())),
    )
    assert seen == [("enter", {"name": "add"}, [0, 0]), ("exit", {"name": "add"}, [1, 1])]


def test_a_hook_that_raises_stops_the_launch() -> None:
    def refuse(_facts: object) -> None:
        raise KeyError("no")

    array = zeros(2, "cpu")
    with pytest.raises(KeyError):
        adder()((2, 1, 1), array, 1, enter=refuse)
    assert array.tolist() == [0, 0]


def test_many_threads_launch_one_kernel() -> None:
    kernel = adder()
    arrays = [zeros(50, device) for device in DEVICES for _ in range(4)]

    def work(array: torch.Tensor) -> None:
        for _ in range(200):
            kernel((50, 1, 1), array, 1)

    threads = [threading.Thread(target=work, args=(array,)) for array in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for array in arrays:
        assert (array == 200).all()


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


# ------------------------------------------------------------------------- other processes

HEAD = f"""
import sys
sys.path.append({str(Path(__file__).parent)!r})
import torch, vllm_anvil.device
from kernel_objects import adder, checker
from test_launch import copier, zeros
"""


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", HEAD + program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_blocking_launches_raise_where_they_are() -> None:
    program = """
try:
    checker()((8, 1, 1), zeros(8), 3)
except RuntimeError as error:
    print("raised:", error)
try:
    torch.anvil.synchronize()  # reports it as well
except RuntimeError:
    pass
array = zeros(2)
adder()((2, 1, 1), array, 1)
print(array.tolist())
"""
    done = run(program, ANVIL_LAUNCH_BLOCKING="1")
    assert "raised: Command 'check' failed: kernel.py:7: x must not be n" in done.stdout, done
    assert "[1, 1]" in done.stdout


def test_two_devices_do_not_mix() -> None:
    program = """
there = torch.zeros(2, dtype=torch.int32, device="anvil:1")
adder()((2, 1, 1), there, 1)   # not the current device
print(there.tolist())
copier()((2, 1, 1), zeros(2), there)
"""
    done = run(program, ANVIL_DEVICES="2")
    assert "[1, 1]" in done.stdout, done
    words = "argument source is on anvil:0 but target is on anvil:1"
    assert words in done.stderr, done


def test_the_sanitizer_sees_what_kernels_touch() -> None:
    program = """
side = torch.anvil.Stream()
array, other = zeros(4), zeros(4)
torch.anvil.synchronize()
kernel = copier()
kernel((4, 1, 1), array, other)
with torch.anvil.stream(side):
    kernel((4, 1, 1), array, zeros(4))  # both read: in order
torch.anvil.synchronize()
print("so far", len(torch.anvil.sanitizer.reports()))
kernel((4, 1, 1), array, other)
with torch.anvil.stream(side):
    adder()((4, 1, 1), array, 1)
torch.anvil.synchronize()
print("now", len(torch.anvil.sanitizer.reports()))
"""
    done = run(program, ANVIL_SANITIZE="1")
    assert "so far 0" in done.stdout and "now 1" in done.stdout, done
    assert "race: memory is used on two streams" in done.stderr
    assert "add" in done.stderr and "both" in done.stderr
