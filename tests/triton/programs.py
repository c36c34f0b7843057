# SPDX-License-Identifier: Apache-2.0
"""Programs that use Triton in processes of their own, since what is activated stays.

`@triton.jit` reads its function's source from a file, so every program is written to one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HEAD = """
import os, sys
import torch
import triton
import triton.language as tl
import vllm_anvil.triton

@triton.jit
def scale(source, target, count, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + i, mask=i < count)
    tl.store(target + i, values * factor, mask=i < count)

def scaled(count=1000, factor=2.5, device="anvil", block=128):
    source = torch.arange(count, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    scale[(triton.cdiv(count, block),)](source, target, count, factor, BLOCK=block)
    return torch.equal(target, source * factor)
"""


def run(
    folder: Path, program: str, head: str = HEAD, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs the program with its Triton cache in folder/cache, unless TRITON_CACHE_DIR is given."""
    file = folder / "program.py"
    file.write_text(head + program)
    return subprocess.run(
        [sys.executable, str(file)],
        env={**os.environ, "TRITON_CACHE_DIR": str(folder / "cache"), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def output(folder: Path, program: str, head: str = HEAD, **environment: str) -> list[str]:
    """The lines that a successful program prints."""
    done = run(folder, program, head, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
