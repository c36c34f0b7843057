# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels as functions of this process.

The native loader (csrc/triton_rt/loaded_object.h) maps each object by itself. LLVM's own JIT
linkers are not used: one overflowed its 32-bit references where memory was mapped far apart, and
without them a process that finds its kernels in the cache needs no LLVM to run them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_anvil import _C


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel's code in memory.

    Attributes:
        code: keeps the code loaded; launchers that have launched it and queued commands do too, so
            it may be dropped at any time.
        address: of the kernel's function.
    """

    code: Any
    address: int


def load(name: str, object_code: bytes) -> LoadedKernel:
    """Loads an ELF relocatable and finds the function `name` in it.

    Raises:
        ValueError: the bytes are damaged, no x86-64 object, without that function, or in need of a
            symbol that kernels do not get.
        RuntimeError: the system refuses memory, or refuses to make it executable.
    """
    code = _C.TritonCode(name, object_code)
    return LoadedKernel(code, code.address)
