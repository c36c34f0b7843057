# SPDX-License-Identifier: Apache-2.0
"""What the device adds to an operation, in one run beside the CPU.

    python benchmarks/device_overhead.py [--json]

calls     an op on anvil tensors against the same op on CPU tensors, both from Python, the device
          keeping up; `added` is what the call costs the caller more.
launches  the part of a call that queues it: the call on the caller while the device is occupied,
          less what the Python binding costs (the CPU's call from Python less the same op called in
          C++, by torch._foreach_*).
replays   a graph of many small nodes, less the same CPU kernels called in C++ in a row; by node.

Every result is checked before it is timed. Figures are medians over rounds, in microseconds;
differences are taken between neighbouring rounds, so that a change of clock speed cancels out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

import vllm_anvil.device  # noqa: F401  registers the device

CALLS = 2000
ROUNDS = 31
NODES = 200
TARGETS_US = {"calls": 0.5, "launches": 1.0, "replays": 0.3}

Row = dict[str, float | str]


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


def time_calls(function: Callable[[], object], calls: int) -> float:
    """Microseconds a call on the calling thread."""
    start = time.perf_counter_ns()
    for _ in range(calls):
        function()
    return (time.perf_counter_ns() - start) / calls / 1000


def time_queued(function: Callable[[], object], calls: int) -> float:
    """Microseconds a call while the device is occupied, so that it takes no part."""
    torch.anvil._sleep(20)
    stream = torch.anvil.current_stream()
    elapsed = time_calls(function, calls)
    if stream.query():
        raise SystemExit("the device was done before the calls were: nothing was measured")
    torch.anvil.synchronize()
    return elapsed


def summary(name: str, base: list[float], ours: list[float], added: list[float]) -> Row:
    quartiles = statistics.quantiles(added, n=4)
    return {
        "operation": name,
        "cpu_us": statistics.median(base),
        "anvil_us": statistics.median(ours),
        "added_us": statistics.median(added),
        "spread_us": quartiles[2] - quartiles[0],
    }


def measure_calls() -> list[Row]:
    on_cpu, on_anvil = operations("cpu"), operations("anvil")
    rows = []
    for name in on_cpu:
        if not torch.equal(on_cpu[name](), on_anvil[name]().cpu()):
            raise SystemExit(f"{name}: the device's result differs from the CPU's")
        cpu, anvil = [], []
        for _ in range(ROUNDS):
            cpu.append(time_calls(on_cpu[name], CALLS))
            anvil.append(time_calls(on_anvil[name], CALLS))
            torch.anvil.synchronize()
        rows.append(summary(name, cpu, anvil, [a - c for a, c in zip(anvil, cpu, strict=True)]))
    return rows


# An op from Python, and in C++ over lists of tensors.
IN_PLACE = {
    "add_(16)": (lambda x, y: x.add_(y), torch._foreach_add_),
    "mul_(16)": (lambda x, y: x.mul_(y), torch._foreach_mul_),
}


def pairs(device: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """NODES tensors and what is added to them, small enough to stay finite."""
    return (
        [torch.full((16,), 1.0, device=device) for _ in range(NODES)],
        [torch.full((16,), 1.0, device=device) for _ in range(NODES)],
    )


def measure_launches() -> list[Row]:
    rows = []
    for name, (call, in_cpp) in IN_PLACE.items():
        xs, ys = pairs("cpu")
        x, y = torch.ones(16, device="anvil"), torch.ones(16, device="anvil")
        call(x, y)
        binding, queued, added = [], [], []
        for _ in range(ROUNDS):
            cpu = time_calls(lambda: call(xs[0], ys[0]), CALLS)  # noqa: B023
            kernel = time_calls(lambda: in_cpp(xs, ys), 10) / NODES  # noqa: B023
            binding.append(cpu - kernel)
            queued.append(time_queued(lambda: call(x, y), CALLS))  # noqa: B023
            added.append(queued[-1] - binding[-1])
        rows.append(summary(name, binding, queued, added))
    return rows


def measure_replays() -> list[Row]:
    rows = []
    for name, (call, in_cpp) in IN_PLACE.items():
        xs, ys = pairs("anvil")
        graph = torch.anvil.Graph()
        call(xs[0], ys[0])
        with torch.anvil.graph(graph):
            for x, y in zip(xs, ys, strict=True):
                call(x, y)
        cpu_xs, cpu_ys = pairs("cpu")
        call(cpu_xs[0], cpu_ys[0])
        in_cpp(cpu_xs, cpu_ys)
        graph.replay()
        if not all(torch.equal(a.cpu(), c) for a, c in zip(xs, cpu_xs, strict=True)):
            raise SystemExit(f"{name}: the replay's results differ from the CPU's")

        def replay(graph: torch.anvil.Graph = graph) -> None:
            graph.replay()
            torch.anvil.synchronize()

        cpu, ours = [], []
        for _ in range(ROUNDS):
            cpu.append(time_calls(lambda: in_cpp(cpu_xs, cpu_ys), 20) / NODES)  # noqa: B023
            ours.append(time_calls(replay, 20) / NODES)
        added = [a - c for a, c in zip(ours, cpu, strict=True)]
        rows.append(summary(name, cpu, ours, added))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode():
        tables = {
            "calls": measure_calls(),
            "launches": measure_launches(),
            "replays": measure_replays(),
        }
    if options.json:
        print(json.dumps({"targets_us": TARGETS_US, **tables}, indent=2))
        return
    for title, rows in tables.items():
        print(f"{title} (target: at most {TARGETS_US[title]} us added)")
        print(f"  {'operation':<14}{'cpu us':>9}{'anvil us':>10}{'added us':>10}{'spread':>9}")
        for row in rows:
            print(
                f"  {row['operation']:<14}{row['cpu_us']:>9.3f}{row['anvil_us']:>10.3f}"
                f"{row['added_us']:>10.3f}{row['spread_us']:>9.3f}"
            )


if __name__ == "__main__":
    main()
