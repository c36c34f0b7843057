# SPDX-License-Identifier: Apache-2.0
"""Leaves a request the tokens that it lists.

The engine's own `allowed_token_ids` takes 1,024 of them; here there is no limit, and a range is one
entry of the list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.logger import init_logger
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsContext,
    LogitsProcessor,
    LogitsProcRequestState,
)

from vllm_anvil.logits_processors.arguments import given, token_ranges
from vllm_anvil.logits_processors.batch import rows_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams

logger = init_logger("vllm.plugins.anvil.logits_processors")


class AllowedTokens(LogitsProcessor):
    """Masks all tokens but `allowed_tokens`: a list of token ids and of texts "FIRST-LAST".

    Ids beyond the model's vocabulary are left out; where none is within it, the request is left
    alone with a warning in the log, since at admission the vocabulary is not known.
    """

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState):
        slots, self._vocabulary = req_states.max_num_reqs, req_states.vocab_size
        self._active = np.zeros(slots, dtype=bool)
        # Rows to be written; a slot that is no longer active gets a row that masks nothing.
        self._staged: dict[int, list[range]] = {}
        self._masked = torch.zeros(
            slots, self._vocabulary, dtype=torch.bool, device=req_states.device
        )

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        value = given(sampling_params, "allowed_tokens")
        if value is not None:
            token_ranges("allowed_tokens", value)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        allowed = self._within_vocabulary(given(sampling_params, "allowed_tokens"))
        if allowed or self._active[req_idx]:
            self._staged[req_idx] = allowed
        self._active[req_idx] = bool(allowed)
        return bool(allowed)

    def _within_vocabulary(self, value: Any) -> list[range]:
        if value is None:
            return []
        allowed = [
            range(one.start, min(one.stop, self._vocabulary))
            for one in token_ranges("allowed_tokens", value)
            if one.start < self._vocabulary
        ]
        if not allowed:
            logger.warning(
                "allowed_tokens=%r of a request names no token of the vocabulary, which has %d: "
                "the request is left alone.",
                value,
                self._vocabulary,
            )
        return allowed

    def apply_staged_writes(self) -> None:
        for slot, allowed in self._staged.items():
            row = self._masked[slot].fill_(bool(allowed))
            single = [one.start for one in allowed if len(one) == 1]
            if single:
                tokens = async_tensor_h2d(single, device=row.device, dtype=torch.int64)
                row.index_fill_(0, tokens, False)
            for one in allowed:
                if len(one) > 1:
                    row[one.start : one.stop].fill_(False)
        self._staged.clear()

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        rows = rows_of(ctx, self._active)
        if rows is not None:
            masked = self._masked[ctx.expanded_idx_mapping[rows].long()]
            logits[rows] = logits[rows].masked_fill(masked, float("-inf"))
        return logits
