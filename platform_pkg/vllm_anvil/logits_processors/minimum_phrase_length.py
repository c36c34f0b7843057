# SPDX-License-Identifier: Apache-2.0
"""Keeps phrases of the output from ending early."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsContext,
    LogitsProcessor,
    LogitsProcRequestState,
)

from vllm_anvil.logits_processors.arguments import given, token_ranges, whole_number
from vllm_anvil.logits_processors.batch import forbid, rows_of, tokens_before

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams

MOST_ENDS = 64
LONGEST = 4096


def _ends(value: Any) -> list[int]:
    ranges = token_ranges("phrase_end_tokens", value)
    if sum(map(len, ranges)) > MOST_ENDS:
        raise ValueError(f"phrase_end_tokens may list {MOST_ENDS} tokens at most")
    return [token for one in ranges for token in one]


class MinimumPhraseLength(LogitsProcessor):
    """Masks `phrase_end_tokens` until the phrase under way has `min_phrase_length` tokens.

    The first phrase begins with the output, every other one after an end of phrase. The engine's
    `min_tokens` holds once for the whole output; this holds for each sentence, line or list entry.
    A token that ends the whole output is masked where it is listed, too.
    """

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState):
        self._req_states = req_states
        slots = req_states.max_num_reqs
        self._length = np.zeros(slots, dtype=np.int64)
        # -1 where there are fewer.
        self._ends = np.full((slots, MOST_ENDS), -1, dtype=np.int64)
        self._changed = True
        self._length_on_device: torch.Tensor
        self._ends_on_device: torch.Tensor

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        length = given(sampling_params, "min_phrase_length")
        ends = given(sampling_params, "phrase_end_tokens")
        if (length is None) != (ends is None):
            raise ValueError("min_phrase_length and phrase_end_tokens are given together or not")
        if length is not None:
            whole_number("min_phrase_length", length, 1, LONGEST)
            _ends(ends)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        self._changed = True
        self._length[req_idx] = given(sampling_params, "min_phrase_length") or 0
        self._ends[req_idx] = -1
        if not self._length[req_idx]:
            return False
        ends = _ends(given(sampling_params, "phrase_end_tokens"))
        self._ends[req_idx, : len(ends)] = ends
        return True

    def apply_staged_writes(self) -> None:
        if self._changed:
            device = self._req_states.device
            self._length_on_device = async_tensor_h2d(self._length, device=device)
            self._ends_on_device = async_tensor_h2d(self._ends, device=device)
            self._changed = False

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        rows = rows_of(ctx, self._length > 0)
        if rows is None:
            return logits
        largest = int(self._length[ctx.idx_mapping_np].max())
        tokens, positions = tokens_before(self._req_states, ctx, rows, largest)
        slots = ctx.expanded_idx_mapping[rows].long()
        length, ends = self._length_on_device[slots].unsqueeze(1), self._ends_on_device[slots]

        # Only the last `length` tokens matter, and of those the ones of the output.
        output = positions >= self._req_states.prompt_len.gpu[slots].long().unsqueeze(1)
        near = torch.arange(largest, device=rows.device) < length
        is_end = (tokens.unsqueeze(2) == ends.unsqueeze(1)).any(2)
        # The phrase is too short where one of them is before the output, or ends another phrase.
        short = (near & (~output | is_end)).any(1, keepdim=True)
        forbid(logits, rows, ends, short.expand_as(ends))
        return logits
