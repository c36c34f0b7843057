# SPDX-License-Identifier: Apache-2.0
"""A logits processor that lets a request have one token only, the one it asks for.

    vllm serve MODEL --logits-processors plugins_example.target_token:TargetToken

It shows what every processor of Model Runner V2 has to do: state by request slot, which the next
request in the slot finds overwritten; arguments checked when a request is admitted; writes staged
on the host and brought to the device once a step; all rows changed at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsContext,
    LogitsProcessor,
    LogitsProcRequestState,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams

ARGUMENT = "target_token"


class TargetToken(LogitsProcessor):
    """Masks every token but `target_token`, a request's custom argument."""

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState):
        self.vocabulary = req_states.vocab_size
        # -1 where the request in a slot asks for nothing.
        self.targets = torch.full((req_states.max_num_reqs,), -1)
        self.targets_on_device = self.targets.to(req_states.device, copy=True)

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        target = (sampling_params.extra_args or {}).get(ARGUMENT)
        if target is not None and (type(target) is not int or target < 0):
            raise ValueError(f"{ARGUMENT} must be the id of a token, not {target!r}")

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        target = (sampling_params.extra_args or {}).get(ARGUMENT)
        # How large the vocabulary is, was not known when the argument was checked.
        wanted = target is not None and target < self.vocabulary
        self.targets[req_idx] = target if wanted else -1
        return wanted

    def apply_staged_writes(self) -> None:
        self.targets_on_device.copy_(self.targets, non_blocking=True)

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        target = self.targets_on_device[ctx.expanded_idx_mapping.long()].unsqueeze(1)
        tokens = torch.arange(self.vocabulary, device=logits.device)
        return logits.masked_fill_((target >= 0) & (tokens != target), float("-inf"))
