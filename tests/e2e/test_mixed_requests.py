# SPDX-License-Identifier: Apache-2.0
"""2,000 mixed requests, cancelled and pre-empted ones among them, are answered as each is alone.

The model has random float32 weights and attention with and without a window, so that its cache has
groups of both kinds. Everything is drawn from one seed. What runs together is up to the machine,
and so are last bits: where they decide a token, that is proven. The request alone then gives the
other answer, too, when the logit of one token is moved by TIE.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from .attention_models import VOCABULARY, make_hybrid

HERE = Path(__file__).parent
CLIENTS, DISTINCT = 2000, 150
LONGEST_PROMPT, MOST_TOKENS = 200, 40
SPECIAL_TOKENS = 4

# Log-probabilities alone and in a batch differ by up to 0.0002: random layers amplify last bits.
TIE = 0.001
# Bytes that the engine may hold after 2,000 requests beyond what it held after 500. A tensor
# takes at least 64 on the device, and there are a few hundred pre-emptions; a page of the process
# for every request would be 6 MiB, and its allocators keep 1 or 2 that they do not use.
MORE_ALLOCATED, MORE_RESIDENT = 8 << 10, 5 << 20

ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "max_model_len": LONGEST_PROMPT + MOST_TOKENS,
    "max_num_seqs": 24,
    "max_num_batched_tokens": 64,
    # A third of what 24 requests would need.
    "block_size": 16,
    "num_gpu_blocks_override": 64,
    "seed": 0,
}


def draw_params(rng: random.Random) -> dict[str, Any]:
    params: dict[str, Any] = {
        "max_tokens": rng.randint(1, MOST_TOKENS),
        "ignore_eos": rng.random() < 0.5,
        "temperature": 0,
        "detokenize": False,
    }

    def perhaps(chance: float, name: str, value: Any) -> None:
        if rng.random() < chance:
            params[name] = value

    if rng.random() < 0.6:
        params |= {"temperature": rng.uniform(0.5, 1.5), "seed": rng.randrange(1 << 40)}
        perhaps(0.4, "top_k", rng.randint(2, 60))
        perhaps(0.4, "top_p", rng.uniform(0.5, 0.99))
        perhaps(0.3, "min_p", rng.uniform(0.01, 0.2))
    perhaps(0.2, "presence_penalty", rng.uniform(-1, 1))
    perhaps(0.2, "frequency_penalty", rng.uniform(-1, 1))
    perhaps(0.2, "repetition_penalty", rng.uniform(0.8, 1.3))
    perhaps(0.3, "logprobs", rng.randint(0, 5))
    perhaps(0.1, "prompt_logprobs", rng.randint(0, 2))
    perhaps(0.2, "stop_token_ids", rng.sample(range(SPECIAL_TOKENS, VOCABULARY), 8))
    perhaps(0.1, "min_tokens", rng.randint(1, params["max_tokens"]))
    return params


def draw_requests(rng: random.Random) -> list[dict[str, Any]]:
    """Most prompts are short; some begin as others do."""

    def tokens(count: int) -> list[int]:
        return [rng.randrange(SPECIAL_TOKENS, VOCABULARY) for _ in range(count)]

    common, requests = tokens(LONGEST_PROMPT), []
    for _ in range(DISTINCT):
        length = rng.randint(1, rng.randint(1, LONGEST_PROMPT))
        same = rng.randrange(length) if rng.random() < 0.3 else 0
        prompt = common[:same] + tokens(length - same)
        requests.append({"token_ids": prompt, "params": draw_params(rng)})
    return requests


def draw_leave(rng: random.Random) -> dict[str, Any] | None:
    """15 of 100 leave, 4 of them most likely before the first token."""
    chance = rng.random()
    if chance < 0.04:
        return {"how": "cancel", "after": rng.randint(1, 40)}
    if chance < 0.15:
        return {"how": rng.choice(("close", "abort")), "after": rng.randint(1, MOST_TOKENS // 2)}
    return None


def draw_bursts(rng: random.Random, clients: int) -> list[dict[str, Any]]:
    bursts: list[dict[str, Any]] = []
    while clients:
        size = min(clients, rng.randint(1, 60))
        clients -= size
        coming = [
            {"request": rng.randrange(DISTINCT), "leave": draw_leave(rng)} for _ in range(size)
        ]
        bursts.append({"waiting": rng.randrange(60), "clients": coming})
    return bursts


@pytest.fixture(scope="module")
def drawn() -> dict[str, Any]:
    rng = random.Random(0)
    return {
        "requests": draw_requests(rng),
        "phases": [draw_bursts(rng, CLIENTS // 4), draw_bursts(rng, CLIENTS - CLIENTS // 4)],
        "tie": TIE,
    }


@pytest.fixture(scope="module")
def clients(drawn: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for phase in drawn["phases"] for burst in phase for one in burst["clients"]]


@pytest.fixture(
    scope="module",
    params=[True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["prefix caching", "no prefix caching"],
)
def result(
    request: pytest.FixtureRequest, drawn: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("mixed-requests")
    make_hybrid(folder / "model")
    engine = ENGINE | {
        "model": str(folder / "model"),
        "dtype": "float32",
        "enable_prefix_caching": request.param,
    }
    (folder / "job.json").write_text(json.dumps({"engine": engine, **drawn}))
    program = [sys.executable, str(HERE / "mixed_requests.py")]
    done = subprocess.run(
        [*program, str(folder / "job.json"), str(folder / "result.json")],
        env={**os.environ, "VLLM_PLUGINS": "anvil"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode != 0:
        pytest.fail(
            f"the engine failed:\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}", pytrace=False
        )
    result = json.loads((folder / "result.json").read_text())
    assert result["engine"] == {
        "device": "anvil",
        "runner": "v2",
        "graphs": "FULL_DECODE_ONLY",
        "asynchronous": True,
        "prefix_caching": request.param,
    }
    return result


def cancelled(output: dict[str, Any]) -> bool:
    return output["finish_reason"] in (None, "abort")


def same(output: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether it is the expected answer, or the beginning of it where it was cancelled."""
    tokens = output["token_ids"]
    if cancelled(output):
        agree = tokens == expected["token_ids"][: len(tokens)]
    else:
        exact = ("token_ids", "finish_reason", "stop_reason")
        long = ("logprobs", "prompt_logprobs")
        agree = all(output[of] == expected[of] for of in exact)
        agree = agree and all(len(output[of]) == len(expected[of]) for of in long)
    given = output.get("prompt_logprobs", [])
    pairs = list(zip(given, expected["prompt_logprobs"], strict=False))
    steps = zip(tokens, output.get("logprobs", []), expected["logprobs"], strict=False)
    for token, found, wanted in steps:
        # The last of the most probable tokens may be others where it is a tie; the chosen is not.
        both = found.keys() & wanted.keys()
        agree = agree and str(token) in both
        pairs += [(found[one], wanted[one]) for one in both]
    return agree and all(abs(one - other) <= TIE for one, other in pairs)


@pytest.mark.surface(
    "prefix caching",
    "pre-emption",
    "2,000 mixed requests, cancelled and pre-empted ones among them, with and without a cache of "
    "prefixes: the answers are those of one by one",
)
def test_answers_are_those_of_one_by_one(
    result: dict[str, Any], clients: list[dict[str, Any]]
) -> None:
    assert len(result["served"]) == CLIENTS
    others = {}
    for number, (output, client) in enumerate(zip(result["served"], clients, strict=True)):
        assert client["leave"] is not None or not cancelled(output)
        alone = result["alone"][client["request"]]
        ties = result["nudged"].get(str(number), [])
        if not any(same(output, expected) for expected in (alone, *ties)):
            others[number] = (client, output, alone, ties)
    assert not others


def test_the_load_is_mixed(result: dict[str, Any], clients: list[dict[str, Any]]) -> None:
    """What the other tests hold for did happen."""
    alone, served = result["alone"], result["served"]
    assert len({token for output in alone for token in output["token_ids"]}) > VOCABULARY / 2
    assert result["pre_emptions"] > 50
    reasons = Counter(output["finish_reason"] for output in served)
    assert reasons["stop"] > 50 and reasons["length"] > 1000
    assert CLIENTS / 20 < sum(map(cancelled, served)) < CLIENTS / 5
    assert sum(cancelled(output) and not output["token_ids"] for output in served) > 10
    assert sum(cancelled(output) and bool(output["token_ids"]) for output in served) > 50
    assert {client["request"] for client in clients} == set(range(DISTINCT))


def test_memory_does_not_grow(result: dict[str, Any]) -> None:
    """That all KV blocks are free when nobody asks, the program has made sure of."""
    _, quarter, end = result["idle"]
    assert quarter["unfinished"] == end["unfinished"] == 0
    assert end["allocated"] - quarter["allocated"] < MORE_ALLOCATED
    assert end["resident"] - quarter["resident"] < MORE_RESIDENT
