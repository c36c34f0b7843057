# SPDX-License-Identifier: Apache-2.0
"""Seam: a call into an engine that dies meanwhile.

What vLLM does
    `vllm.v1.engine.core_client.MPClient` sends calls (`LLM.sleep`, `collective_rpc`, and one of its
    own at the end of the engine's start) to the engine's process and waits for the answer. Of a
    process that dies it only notes that it is dead: who waits, waits for ever.
What is changed
    Calls that are waiting when the engine has died raise EngineDeadError.
Checked against
    vllm 0.32.
Unnecessary when
    The client ends its pending calls itself.
Test that fails then
    tests/plugin/test_rank_seams.py::test_pending_calls_is_needed
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from typing import Any

INTERVAL_S = 0.5


def apply() -> None:
    from vllm.v1.engine import core_client

    client: Any = core_client.MPClient
    start = client.start_engine_core_monitor
    if getattr(start, "is_anvils", False):
        return

    @functools.wraps(start)
    def start_both(self: Any) -> None:
        start(self)
        # Neither keeps the client alive.
        threading.Thread(
            target=_end_calls_of_the_dead,
            args=(self.resources, self.utility_results),
            name="AnvilPendingCalls",
            daemon=True,
        ).start()

    start_both.is_anvils = True  # type: ignore[attr-defined]
    client.start_engine_core_monitor = start_both


def _end_calls_of_the_dead(resources: Any, calls: dict[int, Any]) -> None:
    while not resources.engine_dead:
        time.sleep(INTERVAL_S)
    # One may have just been sent; later ones are refused by the client itself.
    for _ in range(2):
        for number in list(calls):
            call = calls.pop(number, None)
            if isinstance(call, asyncio.Future):
                loop = call.get_loop()
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_fail, call)
            elif call is not None:
                _fail(call)
        time.sleep(INTERVAL_S)


def _fail(call: Any) -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    if not call.done():
        call.set_exception(EngineDeadError())
