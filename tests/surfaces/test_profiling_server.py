# SPDX-License-Identifier: Apache-2.0
"""Profiles of a server, by its routes."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from .served import Server

TOKENS = 8


def profiling(section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface("profiling", section, what)


def answer(server: Server) -> dict[str, Any]:
    body = {"model": "model", "prompt": [5, 6, 7], "max_tokens": TOKENS, "temperature": 0}
    status, found = server.ask("/v1/completions", body | {"ignore_eos": True})
    assert status == 200, found
    return found["choices"][0]


@profiling("routes", "`/start_profile`, with a prefix of its own, and `/stop_profile`")
def test_by_http(server: Server) -> None:
    expected = answer(server)
    assert server.ask("/start_profile", {"profile_prefix": "by_http"})[0] == 200
    try:
        assert answer(server) == expected
    finally:
        assert server.ask("/stop_profile", {})[0] == 200
    (file,) = (server.log.parent / "traces").glob("by_http*_rank0.*.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    device = [event["name"] for event in events if event.get("cat") == "kernel"]
    layers = 30  # SmolLM2's
    assert device.count("anvil::paged_attention") == TOKENS * layers
    assert answer(server) == expected


@profiling("routes", "a prefix that is no name of a file is refused, and the server goes on")
def test_a_prefix_that_cannot_be(server: Server) -> None:
    status, said = server.ask("/start_profile", {"profile_prefix": "../up"})
    assert status >= 400 and "profile_prefix must be" in json.dumps(said)
    assert answer(server)


@profiling("routes", "absent from a server for which no profiler is configured")
def test_none_is_configured(embedding_server: Server) -> None:
    assert embedding_server.ask("/start_profile", {})[0] == 404
    body = {"model": "model", "input": "a sentence"}
    assert embedding_server.ask("/v1/embeddings", body)[0] == 200
