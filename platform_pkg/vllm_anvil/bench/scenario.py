# SPDX-License-Identifier: Apache-2.0
"""What is measured: batches of requests, start-up and memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What of a scenario is timed: a decode step, or all prompts up to their first tokens; of a
    whole run: seconds to the first token, or the peak of resident memory."""

    DECODE = "decode"
    PREFILL = "prefill"
    START_UP = "start-up"
    MEMORY = "memory"


@dataclass(frozen=True)
class Scenario:
    """One line of the result.

    Attributes:
        batch: requests at once; `prompt`, `tokens`: of each, given and new. All 0 for what is
            measured of a whole run.
    """

    name: str
    kind: Kind
    batch: int = 0
    prompt: int = 0
    tokens: int = 0

    @property
    def runs_requests(self) -> bool:
        return self.kind in (Kind.DECODE, Kind.PREFILL)

    @property
    def length(self) -> int:
        """Tokens of a request at its end."""
        return self.prompt + self.tokens

    def describe(self) -> str:
        if self.kind is Kind.DECODE:
            return f"{self.batch} x {self.prompt:,} + {self.tokens}"
        return f"{self.batch} x {self.prompt:,}" if self.kind is Kind.PREFILL else ""


DECODE_TOKENS = 64
NAMED = (
    Scenario("decode-1", Kind.DECODE, 1, 32, DECODE_TOKENS),
    Scenario("decode-8", Kind.DECODE, 8, 32, DECODE_TOKENS),
    Scenario("decode-32", Kind.DECODE, 32, 32, DECODE_TOKENS),
    Scenario("prefill", Kind.PREFILL, 4, 1500, 1),
    Scenario("long-context", Kind.DECODE, 8, 2000, 48),
    Scenario("start-up", Kind.START_UP),
    Scenario("memory", Kind.MEMORY),
)
_BY_NAME = {scenario.name: scenario for scenario in NAMED}
_CUSTOM = re.compile(r"(decode|prefill):([0-9]+)x([0-9]+)(?:\+([0-9]+))?")
# What the settling steps of a decode and one step after them need.
LEAST_DECODE_TOKENS = 8


def scenarios_of(texts: Iterable[str]) -> tuple[Scenario, ...]:
    """The scenarios of these names and descriptions; all named ones for none.

    Raises ValueError for a text that is neither, or one that comes twice.
    """
    chosen = tuple(map(_scenario, texts)) or NAMED
    names = [scenario.name for scenario in chosen]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the scenario {name} is asked for twice")
    return chosen


def _scenario(text: str) -> Scenario:
    found = _BY_NAME.get(text)
    if found is not None:
        return found
    match = _CUSTOM.fullmatch(text)
    if match is None:
        raise ValueError(
            f"there is no scenario {text!r}; there are {', '.join(_BY_NAME)}, and others as "
            "decode:BATCHxPROMPT+TOKENS or prefill:BATCHxPROMPT"
        )
    kind, batch, prompt = Kind(match[1]), int(match[2]), int(match[3])
    if kind is Kind.PREFILL and match[4] is not None:
        raise ValueError(f"{text}: a prefill ends with the first token; leave +{match[4]} out")
    tokens = 1 if kind is Kind.PREFILL else int(match[4] or DECODE_TOKENS)
    if batch < 1 or prompt < 1:
        raise ValueError(f"{text}: a batch and its prompts have at least 1 of each")
    if kind is Kind.DECODE and tokens < LEAST_DECODE_TOKENS:
        raise ValueError(
            f"{text}: a decode needs at least {LEAST_DECODE_TOKENS} new tokens, of which the first "
            "steps are not timed"
        )
    return Scenario(text, kind, batch, prompt, tokens)


def longest_request(scenarios: Sequence[Scenario]) -> int:
    """Tokens of the longest request; 0 where none is run."""
    return max((scenario.length for scenario in scenarios), default=0)


def most_tokens(scenarios: Sequence[Scenario], block: int) -> int:
    """Tokens that the KV cache must hold at once, in whole blocks for each request."""
    return max((s.batch * -(-s.length // block) * block for s in scenarios), default=0)
