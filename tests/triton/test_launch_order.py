# SPDX-License-Identifier: Apache-2.0
"""When and where a launched kernel runs: queued on the device of its tensors, or at once.

The kernels are LLVM IR (kernel_objects.py), so nothing here depends on the compiler.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from kernel_objects import adder, copier, zeros

import vllm_anvil.device  # noqa: F401  registers torch.anvil


def is_idle() -> bool:
    return torch.anvil.current_stream().query()


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
    """Nothing of the device orders when such memory may be used again."""
    view = torch.anvil.device_alias(torch.zeros(1000, dtype=torch.int32, pin_memory=True))
    torch.anvil.synchronize()
    torch.anvil._sleep(50)
    adder()((1000, 1, 1), view, 3)
    del view
    gc.collect()
    later = [torch.zeros(1000, dtype=torch.int32, pin_memory=True) for _ in range(5)]
    torch.anvil.synchronize()
    assert all((one == 0).all() for one in later)


def test_memory_of_others_is_written() -> None:
    host = torch.zeros(100, dtype=torch.int32, pin_memory=True)
    adder()((90, 1, 1), torch.anvil.device_alias(host)[10:], 3)
    torch.anvil.synchronize()
    assert host.tolist() == [0] * 10 + [3] * 90


def test_cpu_tensors_come_behind_the_stream() -> None:
    array = zeros(3, "cpu")
    torch.anvil._sleep(100)
    adder()((3, 1, 1), array, 1)
    assert is_idle() and array.tolist() == [1, 1, 1]


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
    arrays = [zeros(50, device) for device in ("anvil", "cpu") for _ in range(4)]

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


# ------------------------------------------------------------------------- other processes

HEAD = f"""
import sys
sys.path.append({str(Path(__file__).parent)!r})
import torch, vllm_anvil.device
from kernel_objects import adder, checker, copier, zeros
"""


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
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
    assert "add" in done.stderr and "copy" in done.stderr
