# SPDX-License-Identifier: Apache-2.0
"""The engine's processes end when the process that started them has died.

vLLM's workers notice that the engine's process has died, by a pipe, once they are ready. Nobody
notices that the program which started the engine has been killed: the engine's process would wait
for requests for ever, with all of its memory. Here each process of an engine watches its parent. It
asks itself to end, as its parent would have (SIGTERM), and ends without being asked where that
does not help, which it does not where a thread waits for the device, a peer or another process.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import threading
from multiprocessing import util

from vllm.logger import init_logger

logger = init_logger("vllm.plugins.anvil.orphans")

# How the engine names its processes: what else a program starts is its own business.
NAMES = ("EngineCore", "VllmWorker", "VLLM_DP_Coordinator", "ApiServer")

THREAD = "anvil-orphan"

# Seconds for an orderly end. A worker learns of it one process later.
GRACE_S = 4.0

_watcher: int | None = None  # the process that has one


def watch() -> None:
    """Starts watching, in this process and in those that are forked from it, where they are an
    engine's. Again does nothing."""
    util.register_after_fork(_start, lambda start: start())
    _start()


def _start() -> None:
    global _watcher
    own = multiprocessing.current_process().name.startswith(NAMES)
    if not own or _watcher == os.getpid():
        return
    _watcher = os.getpid()
    # A spawned process that is still importing has a name already, but not this.
    parent = multiprocessing.parent_process()
    pid = os.getppid() if parent is None or parent.pid is None else parent.pid
    threading.Thread(target=_wait_for_end, args=(pid,), daemon=True, name=THREAD).start()


def _wait_for_end(parent: int) -> None:
    # Not by multiprocessing's sentinel, a pipe: processes that are forked later hold its other end.
    try:
        file = os.pidfd_open(parent)
    except ProcessLookupError:
        pass
    else:
        poll = select.poll()
        poll.register(file, select.POLLIN)
        poll.poll()
    logger.error("Process %d, which started this one, has died: ending.", parent)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    logger.error("No orderly end within %g s: ending at once.", GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
