# SPDX-License-Identifier: Apache-2.0
"""Objects become functions, damaged ones errors, and code goes when nothing needs it."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

import pytest
from kernel_objects import ADD, SPIN, object_of

import vllm_anvil.device  # noqa: F401
from vllm_anvil.triton_backend.loader import load


def call_add(address: int, start: int, amount: int) -> int:
    element = ctypes.c_int32(start)
    slots = (ctypes.c_int64 * 2)(ctypes.addressof(element), amount)
    grid = (ctypes.c_int32 * 14)(1, 1, 1)
    signature = ctypes.CFUNCTYPE(
        ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int32] * 3
    )
    assert signature(address)(slots, grid, 0, 0, 0) == 0
    return element.value


@pytest.mark.parametrize("optimize", [0, 3])
def test_a_loaded_function_runs(optimize: int) -> None:
    loaded = load("add", object_of(ADD, optimize))
    assert call_add(loaded.address, 40, 2) == 42


def test_objects_with_constants_and_library_calls_load() -> None:
    for optimize in (0, 2):
        assert load("spin", object_of(SPIN, optimize)).address != 0


def executable_bytes() -> int:
    """Of anonymous memory that may be executed."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        if len(fields) == 5 and "x" in fields[1]:
            begin, end = (int(part, 16) for part in fields[0].split("-"))
            total += end - begin
    return total


def test_no_memory_is_writable_and_executable() -> None:
    kept = load("add", object_of(ADD))
    mine = [
        line.split()[1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if int(line.split("-")[0], 16) <= kept.address < int(line.split("-")[1].split()[0], 16)
    ]
    assert mine == ["r-xp"]


def test_code_goes_with_its_last_reference() -> None:
    object_code = object_of(ADD)
    load("add", object_code)
    gc.collect()
    before = executable_bytes()
    held = [load("add", object_code) for _ in range(50)]
    assert executable_bytes() >= before + 50 * os.sysconf("SC_PAGESIZE")
    del held
    gc.collect()
    assert executable_bytes() == before


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda code: b"", "cut short"),
        (lambda code: b"garbage " * 100, "no ELF file"),
        (lambda code: code[: len(code) // 2], "cut short"),
        (lambda code: code[:18] + b"\xb7\x00" + code[20:], "x86-64"),
    ],
)
def test_damaged_objects_are_refused(damage, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load("add", damage(object_of(ADD)))


def test_missing_names_are_said() -> None:
    with pytest.raises(ValueError, match="defines no function other"):
        load("other", object_of(ADD))
    with pytest.raises(ValueError, match="calls getpid, which kernels cannot reach"):
        load(
            "f",
            object_of(
                "declare i32 @getpid()\ndefine i32 @f() {\n  %p = call i32 @getpid()\n"
                "  ret i32 %p\n}"
            ),
        )
