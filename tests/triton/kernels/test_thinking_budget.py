# SPDX-License-Identifier: Apache-2.0
"""Reasoning that is ended when its budget is spent, with draft tokens and over several steps."""

import numpy as np
import pytest
import torch
from comparison import Rows, assert_equal, int32
from vllm.v1.worker.gpu.sample.thinking_budget import apply_thinking_budget

SCAN = "vllm.v1.worker.gpu.sample.thinking_budget:_update_committed_marker_cache_kernel"
FORCE = "vllm.v1.worker.gpu.sample.thinking_budget:_thinking_budget_kernel"

START, NATURAL_END, END = [900, 901], [7], [11, 12, 11, 7]
FORCED = 1.0e9
VOCAB_SIZE = 1025


def last_position(tokens: list[int], marker: list[int]) -> int:
    """Where `marker` begins for the last time in `tokens`, or -1."""
    size = len(marker)
    places = [i for i in range(len(tokens) - size + 1) if tokens[i : i + size] == marker]
    return places[-1] if places else -1


def forced_token(tokens: list[int], budget: int) -> int | None:
    """The token that must come behind `tokens`, if any."""
    start = last_position(tokens, START)
    if budget < 0 or start < 0 or start <= last_position(tokens, NATURAL_END):
        return None
    if len(tokens) - start - len(START) < budget:
        return None
    begun = [n for n in range(1, len(END)) if tokens[-n:] == END[:n]]
    return END[max(begun, default=0)]


class Budgets:
    """The state that the engine keeps of every request's reasoning."""

    def __init__(self, budgets: list[int], device: torch.device):
        count = len(budgets)
        self.budgets = budgets
        self.tokens: list[list[int]] = [[] for _ in budgets]
        self._device = device
        self._last_start = torch.full((count,), -1, dtype=torch.int32, device=device)
        self._last_end = self._last_start.clone()
        self._scanned = torch.zeros(count, dtype=torch.int32, device=device)

    def check_step(self, drafts: dict[int, list[int]]) -> int:
        """Applies the budgets to a row for each prefix of each request's `drafts`.

        Returns how many rows were forced.
        """
        device = self._device
        table = torch.full((len(self.tokens), 4000), -1, dtype=torch.int32)
        for state, tokens in enumerate(self.tokens):
            table[state, : len(tokens)] = int32(tokens)
        mapping, local, ids, rows = [], [], [], []
        for state, draft in drafts.items():
            for position in range(len(draft) + 1):
                mapping.append(state)
                local.append(position)
                rows.append(self.tokens[state] + draft[:position])
            ids += [self.tokens[state][-1], *draft]
        logits = torch.zeros(len(rows), VOCAB_SIZE)
        found = Rows(logits, device)
        apply_thinking_budget(
            found.view,
            int32(list(drafts), device),
            int32(mapping, device),
            int32(self.budgets, device),
            Rows(table, device).view,
            int32([len(t) for t in self.tokens], device),
            int32(ids, device),
            int32(local, device),
            self._last_start,
            self._last_end,
            self._scanned,
            int32(START, device),
            int32(NATURAL_END, device),
            int32(END, device),
        )
        for row, (state, tokens) in enumerate(zip(mapping, rows, strict=True)):
            token = forced_token(tokens, self.budgets[state])
            if token is not None:
                logits[row, token] = FORCED
        assert_equal(found.cpu(), logits)
        return int((logits == FORCED).sum())


@pytest.mark.checks(SCAN, FORCE)
def test_first_steps_of_prompts(device: torch.device) -> None:
    state = Budgets([3, 3, 0, 5, -1, 4, 2000, 3], device)
    state.tokens = [
        [1, *START, 2, 3, 4],  # spent
        [1, *START, 2, 7, 3, 4, 5, 6],  # ended by itself
        [*START],  # nothing allowed
        [1, *START, *range(100, 106), 11, 12],  # the end has begun
        [*START, *[3] * 50],  # no budget set
        [900] * 5 + [901] * 2,  # a marker across repeats of its first token
        [*START, 8, 9, *[3] * 3000],  # the marker is several blocks back
        [7, 900],  # half a marker at the end
    ]
    forced = state.check_step({i: [] for i in (7, 0, 1, 2, 3, 4, 5, 6)})
    assert forced == 4


@pytest.mark.checks(SCAN, FORCE)
def test_markers_among_drafts(device: torch.device) -> None:
    state = Budgets([2, 0, 3, 1], device)
    state.tokens = [[1, 900], [5, *START, 11], [2, 3], [*START, 5]]
    # Markers that end, begin and lie in the drafts, and an end that was drafted.
    drafts = {0: [901, 4, 5, 6], 2: [*START, 9, 9, 9, 7], 1: [12, 11, 7, 3], 3: [7, *START, 9]}
    assert state.check_step(drafts) == 8


def some_tokens(random: np.random.Generator, pieces: int) -> list[int]:
    """Whole markers, parts of markers and other tokens."""
    choices = [START, [3], [4], [900], [11], [12], END[:3], [7]]
    picked = random.choice(len(choices), pieces, p=[0.1, 0.3, 0.3, 0.1, 0.06, 0.06, 0.06, 0.02])
    return [token for index in picked for token in choices[index]]


@pytest.mark.checks(SCAN, FORCE)
def test_cache_over_many_steps(device: torch.device) -> None:
    random = np.random.default_rng(6)
    state = Budgets([1, 4, 0, 3], device)
    state.tokens = [some_tokens(random, 1 + 600 * i) for i in range(4)]
    forced = 0
    for _ in range(12):
        drafts = {
            int(i): some_tokens(random, random.integers(0, 4)) for i in random.permutation(4)[:3]
        }
        forced += state.check_step(drafts)
        for tokens in state.tokens:
            tokens += some_tokens(random, random.integers(0, 4))
    assert forced > 10
    state.tokens[3] = [1, *START, 4, 4, 4]  # a request that took over the slot of a longer one
    assert state.check_step({3: []}) == 1
