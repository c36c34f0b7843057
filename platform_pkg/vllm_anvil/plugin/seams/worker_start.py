# SPDX-License-Identifier: Apache-2.0
"""Seam: how the engine starts the processes of its workers, and what it says of one that dies then.

What vLLM does
    `vllm.v1.executor.multiproc_executor.MultiprocExecutor` starts a process for each rank, by the
    method that was chosen in the process that configured the engine, and waits for all
    (`WorkerProc.wait_for_ready`). Of one that dies meanwhile it says that initialisation failed,
    not which; the others may wait for it in a collective, where no signal but SIGKILL reaches them,
    for the 9 seconds that an orderly end is given.
What is changed
    The method is chosen for the process that starts the workers (plugin/start_method.py). That
    process skips Python's search for garbage when it ends, as the workers do. A worker
    that ends before it is ready is named, with its rank and what ended it, and the others are
    killed at once: they have nothing yet that the kernel would not take back.
Checked against
    vllm 0.32.
Unnecessary when
    The engine names the worker, and asks the platform how to start one.
Test that fails then
    tests/plugin/test_rank_seams.py::test_worker_start_is_needed
"""

from __future__ import annotations

import atexit
import functools
import gc
import signal
from multiprocessing import connection
from typing import Any

from vllm_anvil.plugin import start_method


def apply() -> None:
    from vllm.v1.executor import multiproc_executor

    worker: Any = multiproc_executor.WorkerProc
    set_variables = multiproc_executor.set_multiprocessing_worker_envs
    wait_for_ready = worker.wait_for_ready
    if getattr(wait_for_ready, "is_anvils", False):
        return

    def set_multiprocessing_worker_envs(*args: Any) -> None:
        start_method.choose()
        atexit.register(gc.freeze)
        set_variables(*args)

    @functools.wraps(wait_for_ready)
    def wait_and_name(handles: list[Any]) -> list[Any]:
        try:
            return wait_for_ready(handles)
        except Exception as error:
            dead = _ended(handles)
            for handle in handles:
                handle.proc.kill()
            if not dead:
                raise
            raise RuntimeError(f"While the engine was starting, {dead}.") from error

    wait_and_name.is_anvils = True  # type: ignore[attr-defined]
    worker.wait_for_ready = staticmethod(wait_and_name)
    multiproc_executor.set_multiprocessing_worker_envs = set_multiprocessing_worker_envs


def _ended(handles: list[Any]) -> str:
    """Which of the workers have ended, and how, in words."""
    found = []
    # Pipes of a process that dies are closed a moment before it has ended.
    ending = connection.wait([handle.proc.sentinel for handle in handles], timeout=1)
    for handle in handles:
        if handle.proc.sentinel not in ending:
            continue
        handle.proc.join()
        code = handle.proc.exitcode
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        found.append(f"rank {handle.rank} (process {handle.proc.pid}) ended with {how}")
    return ", ".join(found)
