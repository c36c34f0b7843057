# SPDX-License-Identifier: Apache-2.0
"""Prefix caching and prompts in chunks change nothing but the work: tokens and log-probabilities
are transformers' with steps of several sizes, and what is found in the cache is what must be."""

from __future__ import annotations

import random
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from .conftest import Run, recommend
from .language_model import LanguageModel
from .served import Server

BLOCK, NEW_TOKENS = 16, 24
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "block_size": BLOCK,
    "max_num_seqs": 4,
    "seed": 0,
}
SHORT: dict[str, Any] = {"max_model_len": 192, "num_gpu_blocks_override": 96}
VARIANTS: dict[str, dict[str, Any]] = {
    "whole prompts": SHORT | {"enable_prefix_caching": False, "max_num_batched_tokens": 256},
    "whole prompts, cached": SHORT | {"max_num_batched_tokens": 256},
    "chunks of 5": SHORT | {"enable_prefix_caching": False, "max_num_batched_tokens": 5},
    "chunks of 16, cached": SHORT | {"max_num_batched_tokens": 16},
    "chunks of 33, cached": SHORT | {"max_num_batched_tokens": 33},
    # Four requests need up to 27.
    "few blocks, cached": SHORT | {"num_gpu_blocks_override": 16, "max_num_batched_tokens": 64},
}
LONGEST: dict[str, Any] = {
    "max_model_len": -1,
    "kv_cache_memory_bytes": 200_000,
    "max_num_batched_tokens": 64,
    "generation_config": "vllm",
}


def requests() -> list[dict[str, Any]]:
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(100, 49000) for _ in range(count)]

    common = tokens(70)
    prompts = [
        common + tokens(5),
        common + tokens(10),
        common[:33],  # two blocks and a token
        common[:32],  # two blocks: the last token is computed in any case
        tokens(130),
        tokens(5),
        common + tokens(1),
        common[:20] + tokens(30),
    ]
    params = {"temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True, "logprobs": 0}
    found = [{"token_ids": prompt, "params": params} for prompt in prompts]
    # Log-probabilities of a prompt are computed, not cached.
    found[-2]["params"] = found[4]["params"] = params | {"prompt_logprobs": 0}
    return found


def in_blocks(tokens: int) -> int:
    return tokens // BLOCK * BLOCK


def cacheable(request: dict[str, Any]) -> int:
    """Tokens of whole blocks but the last token's."""
    computed = "prompt_logprobs" in request["params"]
    return 0 if computed else in_blocks(len(request["token_ids"]) - 1)


def same(one: list[int], other: list[int]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


@pytest.fixture(scope="module")
def found(tiny_llama: Path, run_program: Run, tmp_path_factory: pytest.TempPathFactory) -> Any:
    recommending = tmp_path_factory.mktemp("models") / "recommending"
    recommend(tiny_llama, recommending)
    job = {
        "engine": ENGINE | {"model": str(tiny_llama)},
        "variants": VARIANTS,
        "requests": requests(),
        "longest": LONGEST | {"model": str(recommending)},
    }
    return run_program("prefix_engines.py", job, [])[0]


@pytest.fixture(scope="module")
def model(tiny_llama: Path) -> LanguageModel:
    return LanguageModel(tiny_llama)


def marked(section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface("prefix caching", section, what)


@marked("chunked prefill", "steps of 5, 16, 33, 64 and 256 tokens: transformers' tokens")
@marked("answers", "tokens and log-probabilities with and without are transformers'")
@marked("answers", "log-probabilities of a prompt are computed, whatever is cached")
@marked("pre-emption", "with too few blocks: the same tokens and log-probabilities")
@pytest.mark.parametrize("name", list(VARIANTS))
def test_answers(found: dict[str, Any], model: LanguageModel, name: str) -> None:
    answers = found["variants"][name]
    for round_ in ("first", "again", "salted", "reset"):
        for request, output in zip(requests(), answers[round_], strict=False):
            prompt, tokens = request["token_ids"], output["token_ids"]
            assert len(tokens) == NEW_TOKENS
            model.check_greedy(prompt, tokens)
            model.check_logprobs(prompt, tokens, output["logprobs"])
            if "prompt_logprobs" in request["params"]:
                model.check_prompt_logprobs(prompt, output["prompt_logprobs"])
    assert (answers["pre_emptions"] > 0) == (name == "few blocks, cached")


@marked("hits", "whole blocks of a prompt that another began with; `num_cached_tokens`")
@marked("hits", "counted in `vllm:prefix_cache_queries` and `vllm:prefix_cache_hits`")
@pytest.mark.parametrize("name", [name for name in VARIANTS if not name.startswith("few")])
def test_hits(found: dict[str, Any], name: str) -> None:
    answers, asked = found["variants"][name], requests()
    cached = [output["cached"] for output in answers["first"] + answers["again"]]
    if "cached" not in name:
        assert cached == [0] * 2 * len(asked) and answers["hits"] == 0
        return
    prompts = [request["token_ids"] for request in asked]
    for number, request in enumerate(asked):
        before = max((same(prompts[number], one) for one in prompts[:number]), default=0)
        assert cached[number] == min(in_blocks(before), cacheable(request)), number
    assert cached[len(asked) :] == [cacheable(request) for request in asked]
    assert max(cached) == 64 and answers["hits"] == sum(cached)
    looked_up = [one for one in asked if "prompt_logprobs" not in one["params"]]
    assert answers["queries"] == 2 * sum(len(one["token_ids"]) for one in looked_up)


@marked("hits", "none with a `cache_salt` of one's own, and none after `reset_prefix_cache`")
@pytest.mark.parametrize("name", [name for name in VARIANTS if name.endswith("cached")])
def test_no_hits(found: dict[str, Any], name: str) -> None:
    answers = found["variants"][name]
    assert answers["salted"][0]["cached"] == answers["reset"][0]["cached"] == 0


@marked("longest request", "`max_model_len=-1` takes what the cache holds; one that long completes")
@marked("longest request", "one that is longer is refused with both lengths")
def test_the_longest_request(found: dict[str, Any], model: LanguageModel) -> None:
    longest = found["longest"]
    length = longest["length"]
    # 1 KiB for each token: two layers, two heads of 32, keys and values, float32.
    assert in_blocks(LONGEST["kv_cache_memory_bytes"] // 1024) - BLOCK <= length
    assert length <= LONGEST["kv_cache_memory_bytes"] // 1024
    for request, output in zip(longest["requests"], longest["outputs"], strict=True):
        prompt, tokens = request["token_ids"], output["token_ids"]
        assert len(prompt) + len(tokens) == length
        model.check_greedy(prompt, tokens)
        model.check_logprobs(prompt, tokens, output["logprobs"])
    for error in longest["refused"]:
        assert str(length) in error and "maximum" in error, error


@pytest.mark.surface(
    "generative models", "LLM.generate", '`generation_config="vllm"`: the engine\'s own defaults'
)
def test_the_engines_own_defaults(found: dict[str, Any]) -> None:
    longest = found["longest"]
    assert longest["defaults"] == {"temperature": 1.0, "top_k": 0, "repetition_penalty": 1.0}
    assert longest["by default"] == 16


@marked("hits", "by HTTP: `usage.prompt_tokens_details.cached_tokens`, and `/metrics`")
def test_hits_by_http(server: Server, openai_client: OpenAI) -> None:
    rng = random.Random(1)
    prompt = [rng.randrange(100, 49000) for _ in range(5 * BLOCK + 3)]

    def counted() -> tuple[float, float]:
        text = server.ask("/metrics")[1]
        names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
        lines = [line for name in names for line in text.splitlines() if line.startswith(name)]
        queries, hits = (float(line.rpartition(" ")[2]) for line in lines)
        return queries, hits

    def ask(tokens: list[int], **extra: Any) -> tuple[int, str]:
        answer = openai_client.completions.create(
            model="model", prompt=tokens, max_tokens=4, temperature=0, extra_body=extra
        )
        details = answer.usage.prompt_tokens_details  # type: ignore[union-attr]
        return (details and details.cached_tokens) or 0, answer.choices[0].text

    before = counted()
    first, again = ask(prompt), ask(prompt)
    other = ask([*prompt[: 3 * BLOCK + 5], 77, 78])
    salted = ask(prompt, cache_salt="of this request")
    after = counted()
    assert [one[0] for one in (first, again, other, salted)] == [0, 5 * BLOCK, 3 * BLOCK, 0]
    assert first == (0, again[1]) == salted
    assert after[0] - before[0] == 3 * len(prompt) + 3 * BLOCK + 7
    assert after[1] - before[1] == 8 * BLOCK
