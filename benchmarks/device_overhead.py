# SPDX-License-Identifier: Apache-2.0
"""What the device adds to an operation: anvil tensors against CPU tensors, alternating, in one run.

    python benchmarks/device_overhead.py [--json]

Every result is checked before it is timed. Figures are medians over rounds, in microseconds a call;
`added` is the median of the differences between neighbouring rounds, so that a change of clock
speed cancels out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

import vllm_anvil.device  # noqa: F401  registers the device

CALLS = 5000
ROUNDS = 41
TARGET_US = 0.5


def operations(device: str) -> dict[str, Callable[[], torch.Tensor]]:
    """The operations timed, by name, over tensors of 16 float32 elements on `device`."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(16, generator=generator).to(device)
    y = torch.rand(16, generator=generator).to(device)
    target = torch.empty(16, device=device)
    table = torch.rand(16, 16, generator=generator).to(device)
    index = torch.tensor([3, 1, 2], device=device)
    return {
        "add(16)": lambda: x + y,
        "copy_(16)": lambda: target.copy_(x),
        "index_select": lambda: torch.index_select(table, 0, index),
    }


def time_calls(function: Callable[[], torch.Tensor]) -> float:
    """Microseconds a call, over CALLS calls."""
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        function()
    return (time.perf_counter_ns() - start) / CALLS / 1000


def measure() -> list[dict[str, float | str]]:
    on_cpu, on_anvil = operations("cpu"), operations("anvil")
    rows: list[dict[str, float | str]] = []
    for name in on_cpu:
        if not torch.equal(on_cpu[name](), on_anvil[name]().cpu()):
            raise SystemExit(f"{name}: the device's result differs from the CPU's")
        time_calls(on_cpu[name])
        time_calls(on_anvil[name])
        cpu, anvil = [], []
        for _ in range(ROUNDS):
            cpu.append(time_calls(on_cpu[name]))
            anvil.append(time_calls(on_anvil[name]))
        added = [a - c for a, c in zip(anvil, cpu, strict=True)]
        quartiles = statistics.quantiles(added, n=4)
        rows.append(
            {
                "operation": name,
                "cpu_us": statistics.median(cpu),
                "anvil_us": statistics.median(anvil),
                "added_us": statistics.median(added),
                "added_spread_us": quartiles[2] - quartiles[0],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode():
        rows = measure()
    if options.json:
        print(json.dumps({"target_us": TARGET_US, "rows": rows}, indent=2))
        return
    print(f"{'operation':<14}{'cpu us':>9}{'anvil us':>10}{'added us':>10}{'spread':>9}")
    for row in rows:
        print(
            f"{row['operation']:<14}{row['cpu_us']:>9.3f}{row['anvil_us']:>10.3f}"
            f"{row['added_us']:>10.3f}{row['added_spread_us']:>9.3f}"
        )
    print(f"target: at most {TARGET_US} us added")


if __name__ == "__main__":
    main()
