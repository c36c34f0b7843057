# SPDX-License-Identifier: Apache-2.0
"""What `vllm-anvil check-invariance` asks: requests of many kinds, and which of them meet.

All is drawn from a seed. Nothing here needs the engine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Requests that are compared; companions, which are not, are drawn for each batch anew.
TARGETS = 24
LARGEST_BATCH = 64
LOGPROBS = 5
# The sizes that a prompt is cut into.
CHUNKS = (7, 32, 96)


@dataclass(frozen=True)
class Ask:
    """A request: its prompt, and arguments of SamplingParams."""

    prompt: list[int]
    params: dict[str, Any]


@dataclass(frozen=True)
class Batch:
    """Requests that are in the engine together.

    Attributes:
        asks: in the order of their arrival.
        targets: for each its number among the targets; None: a companion.
        after: for each the number of steps that the engine has made when it arrives.
        chunk: tokens of a prompt in a step at most; 0: as many as fit.
    """

    asks: list[Ask]
    targets: list[int | None]
    after: list[int]
    chunk: int = 0


def draw_targets(seed: str, vocabulary: int, longest: int, tokens: int) -> list[Ask]:
    """Greedy and seeded ones, with every sampling parameter, on short and long prompts."""
    chance = random.Random(f"targets/{seed}")
    return [
        Ask(_prompt(chance, vocabulary, longest), _params(chance, number, vocabulary, tokens))
        for number in range(TARGETS)
    ]


def draw_batches(
    seed: str,
    targets: Sequence[Ask],
    vocabulary: int,
    longest: int,
    sizes: Sequence[int],
    chunks: Sequence[int] = (0,),
) -> list[Batch]:
    """A batch of each size: about half of it targets, the rest companions, most without a seed."""
    chance = random.Random(f"batches/{seed}")
    batches = []
    for number, size in enumerate(sizes):
        known = chance.sample(range(len(targets)), min(max(1, size // 2), len(targets)))
        members: list[int | None] = [*known, *[None] * (size - len(known))]
        chance.shuffle(members)
        asks = [
            targets[one] if one is not None else _companion(chance, vocabulary, longest)
            for one in members
        ]
        # Most come at once, the others while those are at work.
        after = sorted(chance.choice((0, 0, 0, 1, 3, 8)) for _ in members)
        batches.append(Batch(asks, members, after, chunks[number % len(chunks)]))
    return batches


def draw_sizes(seed: str, count: int, largest: int) -> list[int]:
    """Sizes of batches: the smallest and the largest among them, if there are two."""
    chance = random.Random(f"sizes/{seed}")
    return [*(2, largest)[:count], *(chance.randint(2, largest) for _ in range(count - 2))]


def _prompt(chance: random.Random, vocabulary: int, longest: int) -> list[int]:
    length = chance.choice((1, 2, 15, 16, 17, 33, 64, 100, 129, 200))
    return [chance.randrange(vocabulary) for _ in range(min(length, longest))]


def _params(chance: random.Random, number: int, vocabulary: int, tokens: int) -> dict[str, Any]:
    params: dict[str, Any] = {
        "temperature": 0.0,
        "max_tokens": chance.randint(max(1, tokens // 2), tokens),
        "ignore_eos": True,
        "detokenize": False,
        "logprobs": LOGPROBS,
    }
    if number % 3:
        params |= {"temperature": chance.uniform(0.5, 1.3), "seed": chance.randrange(1 << 30)}
        params |= chance.choice(
            (
                {},
                {"top_k": chance.randint(2, min(60, vocabulary))},
                {"top_p": chance.uniform(0.5, 0.99)},
                {"min_p": chance.uniform(0.01, 0.2)},
                {"top_k": min(50, vocabulary), "top_p": 0.9, "min_p": 0.02},
            )
        )
    if number % 4 == 3:
        params |= {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.2}
    if number % 6 == 5:
        params["prompt_logprobs"] = 2
    return params


def _companion(chance: random.Random, vocabulary: int, longest: int) -> Ask:
    params: dict[str, Any] = {
        "temperature": chance.choice((0.0, 0.7, 1.5)),
        "max_tokens": chance.randint(1, 24),
        "ignore_eos": True,
        "detokenize": False,
    }
    if chance.random() < 0.3:
        params |= {"top_p": 0.8, "top_k": min(40, vocabulary), "repetition_penalty": 1.1}
    if chance.random() < 0.2:
        params["logprobs"] = LOGPROBS
    return Ask(_prompt(chance, vocabulary, longest), params)
