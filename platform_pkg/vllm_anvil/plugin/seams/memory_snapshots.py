# SPDX-License-Identifier: Apache-2.0
"""Seam: how much memory the engine takes while it starts, on a host that others use as well.

What vLLM does
    `vllm.utils.mem_utils.memory_profiling` takes what free memory fell by since the worker's first
    snapshot for what the engine has taken, and `Worker.determine_available_memory` asserts that it
    did fall: on a GPU others' use seldom changes. The memory of anvil devices is the host's. Where
    another process ends meanwhile, so does the start ("Error in memory profiling"), or the KV cache
    becomes larger than `gpu_memory_utilization` allows.
What is changed
    The name in `gpu_worker` means a context manager that gives the engine's one snapshots in which
    no more memory is free than there was at first, less what the device has reserved since. That
    others take memory still makes the KV cache smaller.
Checked against
    vllm 0.32.
Unnecessary when
    The engine counts what a process takes itself on platforms that share the host's memory.
Test that fails then
    tests/plugin/test_seams.py::test_memory_snapshots_is_needed
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.utils import mem_utils


class SnapshotAfter(mem_utils.MemorySnapshot):
    """The memory of a device after `first` was measured, which must stay as it is."""

    def __init__(self, first: mem_utils.MemorySnapshot) -> None:
        self.first = first
        super().__init__(device=first.device_, auto_measure=False)

    def measure(self) -> None:
        super().measure()
        taken = self.torch_memory - self.first.torch_memory
        most: int = self.first.free_memory - taken
        self.free_memory: int = min(self.free_memory, most)
        self.cuda_memory = self.total_memory - self.free_memory
        self.non_torch_memory = self.cuda_memory - self.torch_memory


@functools.wraps(mem_utils.memory_profiling)
@contextmanager
def memory_profiling(
    baseline_snapshot: mem_utils.MemorySnapshot, *args: Any, **kwargs: Any
) -> Iterator[mem_utils.MemoryProfilingResult]:
    with mem_utils.memory_profiling(baseline_snapshot, *args, **kwargs) as result:
        # The engine measured the first of them already, and measures the other one at the end.
        result.before_profile = SnapshotAfter(baseline_snapshot)
        result.before_profile.measure()
        result.after_profile = SnapshotAfter(baseline_snapshot)
        yield result


def apply() -> None:
    from vllm.v1.worker import gpu_worker

    gpu_worker.memory_profiling = memory_profiling
