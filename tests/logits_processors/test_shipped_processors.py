# SPDX-License-Identifier: Apache-2.0
"""The processors of vllm_anvil.logits_processors against other implementations of what they do:
transformers' own for n-grams, loops over one row's tokens for the others."""

from __future__ import annotations

import importlib.metadata
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm import SamplingParams

from vllm_anvil.logits_processors import AllowedTokens, MinimumPhraseLength, NoRepeatNGram

sys.path.append(str(Path(__file__).parent))

from row_references import (
    Reference,
    allowed_tokens,
    minimum_phrase_length,
    no_repeat_ngram,
)
from simulated_batch import Request, SimulatedBatch

VOCABULARY = 24  # small, so that n-grams do repeat


def some(rng: random.Random) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 8))]


def draw(rng: random.Random, kind: str) -> dict[str, Any]:
    if kind == "allowed":
        first = rng.randrange(VOCABULARY)
        text = f"{first}-{first + rng.randint(0, 9)}"
        return {"allowed_tokens": rng.choice([some(rng), [text], [*some(rng), text, 7, 10**6]])}
    if kind == "no_repeat":
        return {"no_repeat_ngram_size": rng.randint(1, 5)}
    return {
        "min_phrase_length": rng.randint(1, 9),
        "phrase_end_tokens": [*some(rng)[:3], *rng.choice([[], [VOCABULARY + 3]])],
    }


KINDS: dict[str, tuple[type, Reference]] = {
    "allowed": (AllowedTokens, allowed_tokens),
    "no_repeat": (NoRepeatNGram, no_repeat_ngram),
    "phrases": (MinimumPhraseLength, minimum_phrase_length),
}


@pytest.mark.surface(
    "logits processors",
    "useful ones",
    "`vllm_anvil.logits_processors`: allowed tokens, no repeated n-grams, minimum phrase lengths; "
    "in batches, rows in any order, re-used slots, partial prefills, pre-emption",
)
@pytest.mark.surface(
    "logits processors",
    "speculative decoding",
    "several rows a request, with drafts, against references of each processor",
)
@pytest.mark.parametrize("drafts", [0, 3], ids=["a row a request", "rows of drafts"])
@pytest.mark.parametrize("device", ["cpu", "anvil"])
@pytest.mark.parametrize("kinds", [*([kind] for kind in KINDS), list(KINDS)], ids="+".join)
def test_against_the_reference(kinds: list[str], device: str, drafts: int) -> None:
    rng = random.Random(f"{kinds} {drafts}")
    requests = []
    for _ in range(24):
        prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 30))]
        arguments: dict[str, Any] = {}
        for kind in kinds:
            if rng.random() < 0.6:
                arguments |= draw(rng, kind)
        requests.append(Request(prompt, arguments))

    def all_of(
        tokens: list[int], prompt: int, args: dict[str, Any], row: torch.Tensor
    ) -> torch.Tensor:
        for kind in kinds:
            row = KINDS[kind][1](tokens, prompt, args, row)
        return row

    classes = [KINDS[kind][0] for kind in kinds]
    batch = SimulatedBatch(classes, device, VOCABULARY, drafts, seed=drafts)
    assert batch.run(requests, all_of) > 0


def test_drafts_that_do_not_count_bar_nothing() -> None:
    """The engine has -1 for them."""
    from dataclasses import replace

    batch = SimulatedBatch([NoRepeatNGram], "anvil", VOCABULARY, drafts=1)
    request = Request([1, 2, 3], {"no_repeat_ngram_size": 1})
    batch.enter(request)
    batch.states.all_token_ids.gpu[request.slot, :3] = torch.tensor([1, 2, 3], dtype=torch.int32)
    for one in batch.processors:
        one.apply_staged_writes()
    ctx = batch._context(
        [request], [(request, 0, [0]), (request, 1, [0])], [[1, 2, 3], [1, 2, 3, 0]]
    )
    ctx = replace(ctx, input_ids=torch.tensor([3, -1], dtype=torch.int32).to("anvil"))
    logits = batch.processors[0].apply(torch.zeros(2, VOCABULARY, device="anvil"), ctx).cpu()
    assert [row.isneginf().nonzero().flatten().tolist() for row in logits] == [[1, 2, 3]] * 2


WRONG = [
    (AllowedTokens, {"allowed_tokens": []}, "allowed_tokens"),
    (AllowedTokens, {"allowed_tokens": 5}, "allowed_tokens"),
    (AllowedTokens, {"allowed_tokens": [1, -2]}, "allowed_tokens"),
    (AllowedTokens, {"allowed_tokens": [True]}, "allowed_tokens"),
    (AllowedTokens, {"allowed_tokens": [1.5]}, "allowed_tokens"),
    (AllowedTokens, {"allowed_tokens": ["9-4"]}, "'9-4'"),
    (AllowedTokens, {"allowed_tokens": ["a-4"]}, "'a-4'"),
    (AllowedTokens, {"allowed_tokens": ["4-"]}, "'4-'"),
    (AllowedTokens, {"allowed_tokens": [2**31]}, "allowed_tokens"),
    (NoRepeatNGram, {"no_repeat_ngram_size": 0}, "no_repeat_ngram_size"),
    (NoRepeatNGram, {"no_repeat_ngram_size": "3"}, "no_repeat_ngram_size"),
    (NoRepeatNGram, {"no_repeat_ngram_size": 65}, "from 1 to 64"),
    (MinimumPhraseLength, {"min_phrase_length": 3}, "given together"),
    (MinimumPhraseLength, {"phrase_end_tokens": [3]}, "given together"),
    (MinimumPhraseLength, {"min_phrase_length": -1, "phrase_end_tokens": [3]}, "min_phrase_length"),
    (MinimumPhraseLength, {"min_phrase_length": 2, "phrase_end_tokens": "3"}, "phrase_end_tokens"),
    (MinimumPhraseLength, {"min_phrase_length": 2, "phrase_end_tokens": ["0-99"]}, "64 tokens"),
]


@pytest.mark.parametrize(("kind", "arguments", "words"), WRONG, ids=lambda v: str(v)[:40])
def test_invalid_arguments_are_named(kind: Any, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kind.validate_params(SamplingParams(extra_args=arguments))


def test_no_token_of_the_vocabulary_leaves_a_request_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import logging

    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    batch = SimulatedBatch([AllowedTokens], "cpu", VOCABULARY)
    assert not batch.enter(Request([1], {"allowed_tokens": [VOCABULARY, "100-200"]}))
    assert "allowed_tokens" in caplog.text and str(VOCABULARY) in caplog.text


def test_none_is_an_entry_point() -> None:
    """The engine would load it in every process of everyone who has the package installed."""
    entries = importlib.metadata.entry_points(group="vllm.logits_processors")
    assert not [entry for entry in entries if entry.value.startswith("vllm_anvil")]
