# SPDX-License-Identifier: Apache-2.0
"""Processes that load kernels from the cache, run them and end: none crashes, however often.

ANVIL_PROCESS_STARTS sets how many (`make triton-starts`).
"""

from __future__ import annotations

import os
from pathlib import Path

from programs import run

STARTS = int(os.environ.get("ANVIL_PROCESS_STARTS", "3"))

# Queued work is left behind at the end, and a forked child ends as well.
PROGRAM = """
print([scaled(block=block, device=device)
       for device in ("anvil", "cpu") for block in (32, 64, 256)])
x = torch.ones(4096, device="anvil")
for _ in range(20):
    scale[(32,)](x, x, 4096, 1.5, BLOCK=128)
sys.stdout.flush()
if os.fork() == 0:
    sys.exit(0)
assert os.wait()[1] == 0
"""


def test_process_starts(tmp_path: Path) -> None:
    for start in range(STARTS):
        done = run(tmp_path, PROGRAM)
        assert (done.returncode, done.stderr) == (0, ""), (start, done)
        assert done.stdout.splitlines() == ["[True, True, True, True, True, True]"]
