# SPDX-License-Identifier: Apache-2.0
"""Scenarios: names, descriptions, what they need of the engine."""

import pytest

from vllm_anvil.bench import engine_child
from vllm_anvil.bench.scenario import (
    LEAST_DECODE_TOKENS,
    NAMED,
    Kind,
    Scenario,
    longest_request,
    most_tokens,
    scenarios_of,
)


def test_names_and_descriptions() -> None:
    assert scenarios_of([]) == NAMED
    chosen = scenarios_of(["prefill", "decode:3x40+20", "decode:2x5", "prefill:6x7", "memory"])
    assert [(s.kind, s.batch, s.prompt, s.tokens) for s in chosen] == [
        (Kind.PREFILL, 4, 1500, 1),
        (Kind.DECODE, 3, 40, 20),
        (Kind.DECODE, 2, 5, 64),
        (Kind.PREFILL, 6, 7, 1),
        (Kind.MEMORY, 0, 0, 0),
    ]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["decode-9"], "there is no scenario 'decode-9'; there are decode-1, "),
        (["decode:8"], "there is no scenario 'decode:8'"),
        (["prefill:1x2+3"], r"prefill:1x2\+3: a prefill ends with the first token; leave \+3 out"),
        (["decode:0x4"], "decode:0x4: a batch and its prompts have at least 1 of each"),
        (["decode:1x4+7"], r"decode:1x4\+7: a decode needs at least 8 new tokens"),
        (["memory", "memory"], "the scenario memory is asked for twice"),
    ],
)
def test_what_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scenarios_of(texts)


def test_room() -> None:
    scenarios = [Scenario("a", Kind.DECODE, 3, 30, 10), Scenario("b", Kind.DECODE, 1, 90, 10)]
    assert longest_request(scenarios) == 100
    assert most_tokens(scenarios, 32) == 3 * 64
    assert longest_request([]) == most_tokens([], 32) == 0


def test_the_shortest_decode_has_steps_to_time() -> None:
    """Its requests may have been admitted in two different steps."""
    assert LEAST_DECODE_TOKENS - engine_child.SETTLING_STEPS >= 3
