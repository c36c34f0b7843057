# SPDX-License-Identifier: Apache-2.0
"""Keeps n-grams of tokens from coming twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsContext,
    LogitsProcessor,
    LogitsProcRequestState,
)

from vllm_anvil.logits_processors.arguments import given, whole_number
from vllm_anvil.logits_processors.batch import forbid, rows_of, tokens_before

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams

# The tokens before are compared once for each token of an n-gram.
LONGEST = 64


class NoRepeatNGram(LogitsProcessor):
    """Masks every token that would complete a run of `no_repeat_ngram_size` tokens which the prompt
    or the output has already; with size 1, every token that they have."""

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState):
        self._req_states = req_states
        self._size = np.zeros(req_states.max_num_reqs, dtype=np.int64)
        self._changed = True
        self._size_on_device: torch.Tensor

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        value = given(sampling_params, "no_repeat_ngram_size")
        if value is not None:
            whole_number("no_repeat_ngram_size", value, 1, LONGEST)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        self._size[req_idx] = given(sampling_params, "no_repeat_ngram_size") or 0
        self._changed = True
        return bool(self._size[req_idx])

    def apply_staged_writes(self) -> None:
        if self._changed:
            self._size_on_device = async_tensor_h2d(self._size, device=self._req_states.device)
            self._changed = False

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        rows = rows_of(ctx, self._size > 0)
        if rows is None:
            return logits
        sizes = self._size[ctx.idx_mapping_np]
        largest = int(sizes.max())
        # Tokens before the longest of these requests. There are more lengths than requests in a
        # step that is replayed from a larger graph.
        length = int(ctx.seq_lens_upper_bound_np[: sizes.size][sizes > 0].max())
        tokens, positions = tokens_before(self._req_states, ctx, rows, length + largest)
        size = self._size_on_device[ctx.expanded_idx_mapping[rows].long()].unsqueeze(1)

        # Newest first, `tokens[:, i]` is followed by `tokens[:, i - 1]`. The n - 1 newest tokens
        # are compared with those that begin one further back, at `following + 1`.
        following = torch.arange(length, device=rows.device)
        repeated = (size > 0) & (positions[:, :1] - following >= size - 1)
        for k in range(largest - 1):
            earlier = tokens[:, k + 1 : k + 1 + length]
            repeated &= (earlier == tokens[:, k : k + 1]) | (k >= size - 1)
        forbid(logits, rows, tokens[:, :length], repeated)
        return logits
