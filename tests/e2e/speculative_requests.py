# SPDX-License-Identifier: Apache-2.0
"""What engines that speculate are asked: every sampling parameter whose tokens are certain, and
samples to be counted."""

from __future__ import annotations

import random
from typing import Any

from .attention_models import SPECIAL

Request = dict[str, Any]

# "!" to "~": where a prompt ends within a character, the engine's texts begin with the prompt.
ASCII = range(len(SPECIAL), len(SPECIAL) + 94)
NEW_TOKENS = 40
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,4}$"},
        "kind": {"enum": ["a", "bc"]},
    },
    "required": ["name", "kind"],
    "additionalProperties": False,
}
REGEX = "[a-f]{4}(-[0-9]{3}){2}"
CHOICES = ["maybe", "never"]

# By name; all at temperature 0.
CERTAIN: dict[str, dict[str, Any]] = {
    "greedy": {},
    "log-probabilities": {"logprobs": 3},
    "log-probabilities of the prompt": {"logprobs": 0, "prompt_logprobs": 1},
    "presence": {"presence_penalty": 1.0, "logprobs": 1},
    "frequency": {"frequency_penalty": 0.4},
    "repetition": {"repetition_penalty": 1.3},
    "allowed": {"allowed_token_ids": list(range(60, 90))},
    "bad words": {"bad_words": ["a", "0", "xy", "e"]},
    "at least": {"min_tokens": 12, "stop_token_ids": list(range(30, 120)), "ignore_eos": False},
    "stop tokens": {"stop_token_ids": list(range(30, 60))},
    "stop strings": {"stop": ["a", "Q", "5", "~"], "include_stop_str_in_output": True},
    "regex": {"structured_outputs": {"regex": REGEX}, "ignore_eos": False},
    "json": {"structured_outputs": {"json": SCHEMA}, "ignore_eos": False},
    "choice": {"structured_outputs": {"choice": CHOICES}, "ignore_eos": False},
    "shipped processors": {
        "extra_args": {
            "no_repeat_ngram_size": 2,
            "allowed_tokens": ["20-60"],
            "min_phrase_length": 3,
            "phrase_end_tokens": [20, 21, 22, 23],
        }
    },
    "a processor of one's own": {"extra_args": {"multiple_of": 3}},
}
PROCESSORS = [
    "vllm_anvil.logits_processors:AllowedTokens",
    "vllm_anvil.logits_processors:NoRepeatNGram",
    "vllm_anvil.logits_processors:MinimumPhraseLength",
    "processors:FromClass",
]


def _prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.choice(ASCII) for _ in range(length)]


def certain() -> list[tuple[str, Request]]:
    """Each of CERTAIN for several prompts, most of which begin alike and some of which are longer
    than a step."""
    rng = random.Random(0)
    beginning = _prompt(rng, 32)
    found = []
    for length in (5, 40, 90):
        for name, params in CERTAIN.items():
            head = beginning if length > 32 else []
            request = {
                "token_ids": head + _prompt(rng, length - len(head)),
                "params": {
                    "temperature": 0,
                    "max_tokens": NEW_TOKENS,
                    "ignore_eos": True,
                    **params,
                },
            }
            found.append((name, request))
    return found


def samples(count: int, new_tokens: int) -> list[Request]:
    """With seeds, at a temperature of 1, from nothing but the model's distribution."""
    rng = random.Random(1)
    return [
        {
            "token_ids": _prompt(rng, rng.randint(4, 12)),
            "params": {
                "temperature": 1.0,
                "seed": number,
                "max_tokens": new_tokens,
                "ignore_eos": True,
                "detokenize": False,
            },
        }
        for number in range(count)
    ]
