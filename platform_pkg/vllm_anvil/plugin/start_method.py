# SPDX-License-Identifier: Apache-2.0
"""How the engine's processes are started: forked where that is safe, spawned otherwise.

A spawned process imports the engine once more, which takes as long as all else of a start. A forked
one has it, and whatever else its parent had: but of the parent's threads only the one that forked.
vLLM's own default is to fork, unless CUDA or XPU is in use. Each process that starts others is
looked at by itself: the one that configures the engine, and the engine's, which starts the workers
of several ranks.
"""

from __future__ import annotations

import os
import threading
import time

from vllm.logger import init_logger

from vllm_anvil.plugin import orphans

logger = init_logger("vllm.plugins.anvil.start_method")

VARIABLE = "VLLM_WORKER_MULTIPROC_METHOD"

_asked_for: str | None = None  # by the user


def prepare() -> None:
    """Notes what the user has set, and spawns until a configuration says more."""
    global _asked_for
    _asked_for = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "spawn"


def choose(with_ray: bool = False) -> None:
    """Sets the method for processes that are about to start, for this process and its children."""
    reason = _why_not_fork(with_ray)
    if _asked_for == "fork" and reason is not None:
        logger.warning("%s=fork is overridden with spawn: %s.", VARIABLE, reason)
    os.environ[VARIABLE] = "spawn" if _asked_for == "spawn" or reason is not None else "fork"


def _why_not_fork(with_ray: bool) -> str | None:
    import vllm_anvil.device  # registers the device, hence not at the top

    if with_ray:
        return "Ray's threads do not live on in a forked child"
    if vllm_anvil.device.is_in_use():
        return "this process uses the anvil device, which does not work in a forked child"
    # One that only waits for another process holds no lock.
    if any(one.name != orphans.THREAD for one in threading.enumerate()[1:]):
        return "this process has other Python threads, whose locks a forked child would inherit"
    if _may_have_openmp_threads():
        return "PyTorch has computed in this process, with OpenMP threads that a fork does not copy"
    return None


def _may_have_openmp_threads() -> bool:
    """Whether a native thread waits inside an OpenMP runtime, runs, or cannot be looked at.

    In a forked child such a runtime would wait for its threads for ever, at the first operator that
    it shares among them.
    """
    try:
        runtimes = _mapped_code("libgomp", "libiomp", "libomp")
        for thread in os.listdir("/proc/self/task"):
            if int(thread) == threading.get_native_id():
                continue
            place = _where_it_waits(thread)
            if place is None:
                continue
            if place == "running" or any(int(place, 16) in code for code in runtimes):
                return True
    except OSError:
        return True
    return False


def _where_it_waits(thread: str) -> str | None:
    """An address, or "running"; None for a thread that has ended. One that Python has joined may
    still be on its way out: it gets a moment before it counts as running."""
    place = "running"
    for _ in range(20):
        try:
            with open(f"/proc/self/task/{thread}/syscall") as file:
                place = file.read().split()[-1]
        except (FileNotFoundError, ProcessLookupError):
            return None
        if place != "running":
            break
        time.sleep(0.001)
    return place


def _mapped_code(*libraries: str) -> list[range]:
    """Where the code of these libraries lies in this process."""
    found = []
    with open("/proc/self/maps") as file:
        for line in file:
            addresses, permissions, *rest = line.split()
            if "x" in permissions and os.path.basename(rest[-1]).startswith(libraries):
                begin, end = addresses.split("-")
                found.append(range(int(begin, 16), int(end, 16)))
    return found
