# SPDX-License-Identifier: Apache-2.0
"""Measures what the machine can do at best: `ceiling_child.py DTYPE RESULT.json`.

In a process of its own, so that neither its memory nor its threads are there when an engine runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MEASUREMENTS = 5
MEMORY = 1 << 30


def main(dtype: str, result: str) -> None:
    """Writes {"read": bytes per second, "arithmetic": operations per second}."""
    import torch

    from anvil_attention.bench import devices
    from anvil_attention.bench.ceilings import Ceilings

    device = devices.open_device("anvil")
    memory = min(MEMORY, devices.free_memory(device) // 2)
    ceilings = Ceilings(device, getattr(torch, dtype), devices.last_level_cache(device), memory)
    for _ in range(MEASUREMENTS):
        ceilings.measure()
    found = {
        "read": ceilings.bytes_per_second,
        "arithmetic": ceilings.operations_per_second,
    }
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
