# SPDX-License-Identifier: Apache-2.0
"""Operations that tests compile run in any process, however full its address space is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Leaves a single page free above 8 GiB that are taken: the kernel gives the highest room that
# suffices, so one page of constants would lie there, and two pages of code below the 8 GiB.
PROGRAM = """
import ctypes
import numpy as np
from element_calls import BASELINE, compile_operation

PAGE, RESERVED = 4096, 0x4022  # MAP_NORESERVE, MAP_ANONYMOUS, MAP_PRIVATE
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

def reserve(size):
    return libc.mmap(None, size, 0, RESERVED, -1, 0)

def power():
    types = ["f32", "f32"], ["f32"]
    return compile_operation("tt.extern_elementwise", *types, cpu=BASELINE, symbol="__nv_powf")

three = np.full(16, 3, np.float32)
power()
page = reserve(PAGE)
reserve(PAGE)
below = reserve(8 << 30)
while reserve(PAGE) > below:
    pass
libc.munmap(page, PAGE)
for _ in range(5):
    assert (power()(three, three) == 27).all()
print("done")
"""


def test_code_and_constants_lie_together_in_any_address_space() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "done\n", done.stderr
