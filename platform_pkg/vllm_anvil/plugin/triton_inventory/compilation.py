# SPDX-License-Identifier: Apache-2.0
"""Compiles many kernels in processes of their own, so that what ends one of them ends no more."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

WORKER = "vllm_anvil.plugin.triton_inventory.worker"
# To import the engine and to find its kernels takes a worker ten seconds where nothing else runs.
START_TIMEOUT_S = 300.0
KERNEL_TIMEOUT_S = 1200.0


class WorkerEnded(Exception):
    """The worker gave no answer; says how it ended."""


@dataclass(frozen=True)
class Result:
    """What became of a kernel; `reason` is "" if it was compiled."""

    kernel: str
    reason: str
    seconds: float = 0.0


class Worker:
    """A process that compiles one kernel after another."""

    def __init__(self, last_stage: str) -> None:
        reader, writer = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", WORKER, str(writer), last_stage],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[writer],
            text=True,
        )
        os.close(writer)
        self._answers = os.fdopen(reader)
        # Read to the end, or a worker that says much would wait.
        self._errors: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        try:
            self.overridden: list[str] = self._answer(START_TIMEOUT_S)["overridden"]
        except BaseException:
            self.close()
            raise

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = [*self._errors[-4:], line.strip()]

    def compile(self, kernel: str) -> Result:
        """Raises `WorkerEnded` when the process ends over it, or takes too long."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{kernel}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerEnded(self._how_it_ended()) from None
        return Result(kernel, **self._answer(KERNEL_TIMEOUT_S))

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        ready, _, _ = select.select([self._answers], [], [], timeout_s)
        if not ready:
            raise WorkerEnded(f"not compiled within {timeout_s:g} s")
        line = self._answers.readline()
        if not line:
            raise WorkerEnded(self._how_it_ended())
        return json.loads(line)

    def _how_it_ended(self) -> str:
        status = self._process.wait()
        self._listener.join(1.0)
        if status < 0:
            return f"the compiler ended with {signal.Signals(-status).name}"
        said = next((line for line in reversed(self._errors) if line), "")
        return f"the compiler's process ended with status {status}: {said}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._answers.close()


@dataclass
class Compilation:
    """Results in the order in which they come, and what the platform overrides."""

    results: list[Result]
    overridden: list[str]


def compile_all(
    kernels: Iterable[str],
    processes: int,
    last_stage: str = "obj",
    progress: Callable[[Result], None] = lambda result: None,
) -> Compilation:
    """Compiles the kernels to `last_stage` ("ttir" or "obj") with that many processes at once.

    `progress` is told each result as it comes, one at a time, in a thread of its own. Raises
    `WorkerEnded` where workers do not start.
    """
    queue = list(kernels)
    done = Compilation([], [])
    if not queue:
        return done
    lock = threading.Lock()
    # Neighbours share a module: a worker that takes several in a row imports it once.
    batches = [queue[first : first + 8] for first in range(0, len(queue), 8)]
    processes = min(processes, len(batches))

    def take() -> list[str]:
        with lock:
            return batches.pop(0) if batches else []

    def work() -> Iterator[Result]:
        worker = Worker(last_stage)
        try:
            done.overridden = worker.overridden
            while batch := take():
                for kernel in batch:
                    try:
                        yield worker.compile(kernel)
                    except WorkerEnded as ended:
                        worker.close()
                        yield Result(kernel, str(ended))
                        worker = Worker(last_stage)
        finally:
            worker.close()

    def collect() -> None:
        for result in work():
            with lock:
                done.results.append(result)
                progress(result)

    with ThreadPoolExecutor(max_workers=processes) as pool:
        for future in as_completed([pool.submit(collect) for _ in range(processes)]):
            future.result()
    return done
