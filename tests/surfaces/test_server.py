# SPDX-License-Identifier: Apache-2.0
"""A server with logits processors, the stat logger and the endpoints of Anvil, and an endpoint
plugin that makes mistakes."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from openai import OpenAI

from .served import Server

NEW_TOKENS = 6


def completion(arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    body = {
        "model": "model",
        "prompt": [5, 6, 7],
        "max_tokens": NEW_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    return body if arguments is None else {**body, "vllm_xargs": arguments}


def tokens(server: Server, arguments: dict[str, Any] | None = None) -> list[int]:
    status, answer = server.ask("/v1/completions", completion(arguments))
    assert status == 200, answer
    return answer["choices"][0]["token_ids"]


def logits(section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface("logits processors", section, what)


@logits("loading", "by qualified name and by entry point in `vllm serve`")
@logits("custom arguments", "`vllm_xargs` of an HTTP request")
def test_arguments_over_http(server: Server) -> None:
    plain = tokens(server)
    assert tokens(server, {"target_token": 67}) == [67] * NEW_TOKENS
    assert set(tokens(server, {"allowed_tokens": ["100-109", 300]})) <= {*range(100, 110), 300}
    assert min(tokens(server, {"above": 48000})) > 48000
    assert tokens(server) == plain


@logits("custom arguments", "`extra_body` of the OpenAI client")
def test_the_openai_client(openai_client: OpenAI) -> None:
    answer = openai_client.completions.create(
        model="model",
        prompt=[5, 6, 7],
        max_tokens=NEW_TOKENS,
        temperature=0,
        extra_body={
            "vllm_xargs": {"target_token": 67},
            "ignore_eos": True,
            "return_token_ids": True,
        },
    )
    assert answer.choices[0].model_dump()["token_ids"] == [67] * NEW_TOKENS


@logits("custom arguments", "invalid ones fail their request alone, with status 400")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target_token": "none"}, "target_token must be the id of a token, not 'none'"),
        ({"allowed_tokens": ["9-4"]}, "allowed_tokens has '9-4'"),
    ],
)
def test_invalid_arguments(server: Server, arguments: dict[str, Any], words: str) -> None:
    status, answer = server.ask("/v1/completions", completion(arguments))
    assert status == 400 and words in answer["error"]["message"]
    assert tokens(server, {"target_token": 67}) == [67] * NEW_TOKENS


@logits("errors", "a mistake in `validate_params` fails its request alone, with status 500")
def test_a_mistake_at_admission(server: Server) -> None:
    status, _ = server.ask("/v1/completions", completion({"break_in": "validate_params"}))
    assert status == 500
    assert tokens(server, {"target_token": 67}) == [67] * NEW_TOKENS


def plugin(section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface("plugin system", section, what)


@plugin("endpoint plugins", "`/anvil/...`: memory, graph replays, kernels and utilisation")
def test_what_the_device_does(server: Server) -> None:
    before = server.ask("/anvil/graphs")[1][0]
    tokens(server)
    after = server.ask("/anvil/graphs")[1][0]
    assert after["mode"] == "FULL_DECODE_ONLY" and 1 in after["captured_sizes"]
    # A prompt, then a replay for each other token; one step more may have been under way.
    assert NEW_TOKENS - 1 <= after["replays"] - before["replays"] <= NEW_TOKENS
    assert NEW_TOKENS <= after["steps"] - before["steps"] <= NEW_TOKENS + 1

    (memory,) = server.ask("/anvil/memory")[1]
    held = {tag: one["allocated_bytes"] for tag, one in memory["by_tag"].items()}
    assert held["weights"] > 0 and held["kv_cache"] > 0
    assert sum(held.values()) <= memory["limit"]

    (kernels,) = server.ask("/anvil/kernels")[1]
    assert kernels["attention"] == ["ANVIL_ATTN"] and kernels["model_runner"] == "AnvilModelRunner"
    assert kernels["attention_implementation"] == "native"
    assert kernels["ir_ops"]["rms_norm"][0] == "anvil"

    server.ask("/anvil/utilisation")
    tokens(server)
    (busy,) = server.ask("/anvil/utilisation")[1]
    assert 0 < busy["utilisation"] <= 1
    (report,) = server.ask("/anvil/report")[1]
    assert report["device"] == "anvil:0" and report["figures"]["tokens"] > NEW_TOKENS


def metrics(text: str) -> dict[str, float]:
    """Values by name; labels are left out, since there is one worker."""
    lines = re.findall(r"^(anvil:\w+)(?:\{[^}]*\})? (\S+)$", text, re.M)
    return {name: float(value) for name, value in lines}


@plugin(
    "stat logger plugins", "device memory, graph replays, utilisation and kernels in `/metrics`"
)
@plugin("stat logger plugins", "the same in the log, a line at each interval")
def test_stat_logger(server: Server) -> None:
    tokens(server)
    text = server.ask("/metrics")[1]
    asked, logged = metrics(server.ask("/anvil/metrics")[1]), metrics(text)
    same = {"anvil:steps_total", "anvil:graph_replays_total", "anvil:memory_limit_bytes"}
    # A step that was under way when the last token came may be missing in the log's figures.
    for name in same:
        assert 0 <= asked[name] - logged[name] <= 1 and asked[name] > 0, name
    assert {name for name in asked if name.startswith("anvil:")} <= logged.keys()
    (labels,) = re.findall(r"^anvil:kernels_info\{(.*)\} 1.0$", text, re.M)
    for label in ('attention="ANVIL_ATTN"', 'implementation="native"', 'model_name="model"'):
        assert label in labels
    for _ in range(300):  # the interval is a second
        said = server.log.read_text()
        if "graph replays, utilisation" in said:
            break
        time.sleep(0.2)
    assert re.search(r"anvil:0: \d+ steps, \d+ graph replays, utilisation \d+%, memory", said)


@plugin("endpoint plugins", "one whose route raises answers 500; the others and the engine go on")
@plugin("endpoint plugins", "one that cannot be made is left out, and the log names it")
@plugin("endpoint plugins", "one that VLLM_PLUGINS does not name is not loaded")
def test_mistakes_of_endpoints(server: Server) -> None:
    assert server.ask("/breaks_when_asked")[0] == 500
    assert server.ask("/breaks_when_made")[0] == 404
    assert server.ask("/not_named")[0] == 404
    said = server.log.read_text()
    assert "Failed to instantiate endpoint plugin breaks_when_made" in said
    assert tokens(server, {"target_token": 67}) == [67] * NEW_TOKENS
    assert server.ask("/health")[0] == 200
