# SPDX-License-Identifier: Apache-2.0
"""Every sampling parameter on Model Runner V2, each alone and all mixed in one batch."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from .conftest import EngineRun, Reference

NEW_TOKENS = 12
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def parameters(greedy: list[int], vocabulary: dict[str, int]) -> dict[str, dict[str, Any]]:
    """By name; those that follow from the greedy continuation are made of it."""
    first = greedy[0]
    word = next(text for text, token in vocabulary.items() if token == first)
    return {
        "greedy": {"temperature": 0.0},
        "seed 1": {"temperature": 1.5, "seed": 1},
        "seed 1 again": {"temperature": 1.5, "seed": 1},
        "seed 2": {"temperature": 1.5, "seed": 2},
        "no seed": {"temperature": 0.8},
        "top_k": {"temperature": 1.5, "top_k": 1, "seed": 3},
        "top_p": {"temperature": 1.5, "top_p": 1e-6, "seed": 4},
        "min_p": {"temperature": 1.5, "min_p": 1.0, "seed": 5},
        "top_k and top_p": {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "seed": 6},
        "presence": {"temperature": 0.0, "presence_penalty": 2.0},
        "frequency": {"temperature": 0.0, "frequency_penalty": 2.0},
        "repetition": {"temperature": 0.0, "repetition_penalty": 1.8},
        "bias for": {"temperature": 0.0, "logit_bias": {"77": 100.0}},
        "bias against": {"temperature": 0.0, "logit_bias": {str(first): -100.0}},
        "allowed": {"temperature": 0.0, "allowed_token_ids": [50, 60, 70]},
        "bad words": {"temperature": 0.0, "bad_words": [word]},
        "min_tokens": {"temperature": 0.0, "min_tokens": 5, "stop_token_ids": greedy[:6]},
        "stop token": {"temperature": 0.0, "stop_token_ids": [greedy[3]]},
        "stop string": {"temperature": 0.0, "stop": ["e"]},
        "logprobs": {"temperature": 0.0, "logprobs": 3},
        "all logprobs": {"temperature": 0.0, "logprobs": -1, "max_tokens": 2},
        "prompt logprobs": {"temperature": 0.0, "prompt_logprobs": 2},
        "several": {"temperature": 1.0, "n": 3, "seed": 7},
        "choice": {"temperature": 0.0, "structured_outputs": {"choice": ["maybe", "never"]}},
        "regex": {"temperature": 0.0, "structured_outputs": {"regex": "[0-9]{3}-[0-9]{3}"}},
        "json": {"temperature": 0.0, "structured_outputs": {"json": SCHEMA}, "max_tokens": 60},
        "ignore_eos": {"temperature": 0.0, "ignore_eos": True, "max_tokens": 20},
    }


@pytest.fixture(scope="module")
def results(
    smollm2: Path, engine_run: EngineRun, reference: Reference
) -> dict[str, tuple[dict, dict]]:
    """By the name of the parameters: the output alone, and in the batch of all."""
    from transformers import AutoTokenizer

    engine = {
        "model": str(smollm2),
        "dtype": "float32",
        "max_model_len": 512,
        "max_num_seqs": 64,
        "max_logprobs": -1,
    }
    prompt, greedy = reference.prompts[4], reference.tokens[4][:NEW_TOKENS]
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    by_name = parameters(greedy, {tokenizer.decode([token]): token for token in greedy})
    requests = [
        {"token_ids": prompt, "params": {"max_tokens": NEW_TOKENS, **params}}
        for params in by_name.values()
    ]
    count = len(requests)
    batches = [[number] for number in range(count)] + [list(range(count))]
    report = engine_run(engine | {"seed": 0}, requests, batches=batches)
    assert report["runner"] == "v2" and report["has_triton"]
    outputs = report["outputs"]
    assert outputs[list(by_name).index("greedy")]["token_ids"] == greedy
    return dict(zip(by_name, zip(outputs[:count], outputs[count:], strict=True), strict=True))


DETERMINISTIC = [name for name in parameters([0, 1, 2, 3, 4, 5], {"": 0}) if name != "no seed"]


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_neighbours_in_the_batch_change_nothing(results: dict, name: str) -> None:
    alone, mixed = results[name]
    for one, other in zip(alone["completions"], mixed["completions"], strict=True):
        assert one["token_ids"] == other["token_ids"]
        assert one["finish_reason"] == other["finish_reason"]
        for entries, others in zip(one["logprobs"], other["logprobs"], strict=True):
            assert entries.keys() == others.keys()
            for token, (logprob, _) in entries.items():
                assert math.isclose(logprob, others[token][0], abs_tol=1e-3)


def tokens(results: dict, name: str) -> list[int]:
    return results[name][0]["token_ids"]


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p", "logprobs", "prompt logprobs"])
def test_what_leaves_only_the_likeliest_is_greedy(results: dict, name: str) -> None:
    assert tokens(results, name) == tokens(results, "greedy")


def test_seeds(results: dict) -> None:
    assert tokens(results, "seed 1") == tokens(results, "seed 1 again")
    assert tokens(results, "seed 1") != tokens(results, "seed 2")
    several = [one["token_ids"] for one in results["several"][0]["completions"]]
    assert len(several) == 3 and len({tuple(one) for one in several}) > 1


def test_penalties(results: dict) -> None:
    greedy = tokens(results, "greedy")
    for name in ("presence", "frequency", "repetition"):
        penalised = tokens(results, name)
        assert penalised[0] == greedy[0] or name == "repetition"
        assert len(set(penalised)) >= len(set(greedy))


def test_biases(results: dict) -> None:
    greedy = tokens(results, "greedy")
    assert set(tokens(results, "bias for")) == {77}
    assert greedy[0] not in tokens(results, "bias against")
    assert set(tokens(results, "allowed")) <= {50, 60, 70}
    assert tokens(results, "bad words")[0] != greedy[0]


def test_where_generation_stops(results: dict) -> None:
    greedy = tokens(results, "greedy")
    at_least = results["min_tokens"][0]["completions"][0]
    assert len(at_least["token_ids"]) >= 5 or at_least["finish_reason"] == "length"
    stopped = results["stop token"][0]["completions"][0]
    place = greedy.index(greedy[3])
    assert stopped["token_ids"] == greedy[: place + 1] and stopped["stop_reason"] == greedy[3]
    text = results["stop string"][0]["completions"][0]
    assert "e" not in text["text"] and text["stop_reason"] == "e"
    assert len(tokens(results, "ignore_eos")) == 20


def test_log_probabilities(results: dict) -> None:
    entries = results["logprobs"][0]["completions"][0]["logprobs"]
    for token, three in zip(tokens(results, "logprobs"), entries, strict=True):
        assert len(three) == 3 and three[str(token)][1] == 1
        assert three[str(token)][0] == max(logprob for logprob, _ in three.values())
    for whole in results["all logprobs"][0]["completions"][0]["logprobs"]:
        assert len(whole) > 49000
        assert math.isclose(sum(math.exp(x) for x, _ in whole.values()), 1.0, abs_tol=1e-3)
    assert len(results["prompt logprobs"][0]["prompt_logprobs"]) > 10


def test_structured_outputs(results: dict) -> None:
    def text(name: str) -> str:
        return results[name][0]["completions"][0]["text"]

    assert text("choice") in ("maybe", "never")
    assert re.fullmatch("[0-9]{3}-[0-9]{3}", text("regex"))
    found = json.loads(text("json"))
    assert set(found) == {"name", "age"} and isinstance(found["age"], int)
