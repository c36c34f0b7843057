# SPDX-License-Identifier: Apache-2.0
"""A server that sleeps and wakes by its routes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from .served import Server


def sleep_mode(section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface("sleep mode", section, what)


def tokens(server: Server) -> list[int]:
    body = {"model": "model", "prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0}
    status, answer = server.ask("/v1/completions", body | {"return_token_ids": True})
    assert status == 200, answer
    return answer["choices"][0]["token_ids"]


def reserved(server: Server) -> dict[str, int]:
    (memory,) = server.ask("/anvil/memory")[1]
    return {tag: memory["by_tag"][tag]["reserved_bytes"] for tag in ("weights", "kv_cache")}


@sleep_mode("routes", "`/sleep`, `/is_sleeping`, `/wake_up`, with tags too")
@sleep_mode("routes", "a request that comes meanwhile is answered after `/wake_up`")
def test_by_http(server: Server) -> None:
    expected, held = tokens(server), reserved(server)
    assert server.ask("/sleep?level=1", {})[0] == 200
    try:
        assert server.ask("/is_sleeping")[1] == {"is_sleeping": True}
        assert reserved(server) == {"weights": 0, "kv_cache": 0}
        with ThreadPoolExecutor(1) as pool:
            meanwhile = pool.submit(tokens, server)
            woken: Any = server.ask("/wake_up?tags=weights", {})[1]
            assert woken["status"] == "sleeping"
            assert reserved(server) == held | {"kv_cache": 0}
            assert server.ask("/wake_up?tags=kv_cache", {})[1]["status"] == "awake"
            assert meanwhile.result() == expected
    finally:
        server.ask("/wake_up", {})
    assert server.ask("/is_sleeping")[1] == {"is_sleeping": False}
    assert reserved(server) == held and tokens(server) == expected


@sleep_mode("routes", "`/release_kv_cache_memory` of a server that pauses (level 0)")
def test_the_cache_alone(server: Server) -> None:
    expected, held = tokens(server), reserved(server)
    assert server.ask("/sleep?level=0", {})[0] == 200
    try:
        assert server.ask("/release_kv_cache_memory", {})[0] == 200
        assert reserved(server) == held | {"kv_cache": 0}
    finally:
        server.ask("/wake_up", {})
    assert reserved(server) == held and tokens(server) == expected
