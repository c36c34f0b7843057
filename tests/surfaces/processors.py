# SPDX-License-Identifier: Apache-2.0
"""Logits processors of these tests, one for each way in which one is loaded or goes wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.sample.logits_processor import LogitsProcessor as LogitsProcessorV1
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsContext,
    LogitsProcessor,
    LogitsProcRequestState,
)

if TYPE_CHECKING:
    from vllm import SamplingParams


class OfArgument(LogitsProcessor):
    """Changes the rows of requests with the custom argument `name`, a whole number."""

    name: str

    def __init__(self, vllm_config: Any, req_states: LogitsProcRequestState) -> None:
        self.values = np.full(req_states.max_num_reqs, -1)
        self.device = req_states.device

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        value = (sampling_params.extra_args or {}).get(self.name, -1)
        self.values[req_idx] = value
        return value >= 0

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        values = torch.from_numpy(self.values).to(logits.device)[ctx.expanded_idx_mapping.long()]
        return self.change(logits, values.unsqueeze(1))

    def change(self, logits: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class FromEntryPoint(OfArgument):
    """Leaves tokens that are greater than `above`. Gives a new tensor instead of writing to its
    argument."""

    name = "above"

    def change(self, logits: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        tokens = torch.arange(logits.shape[1], device=logits.device)
        return logits.masked_fill((values >= 0) & (tokens <= values), float("-inf"))


class FromClass(OfArgument):
    """Leaves tokens that `multiple_of` divides."""

    name = "multiple_of"

    def change(self, logits: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        tokens = torch.arange(logits.shape[1], device=logits.device)
        return logits.masked_fill_(
            (values > 0) & (tokens % values.clamp(min=1) != 0), float("-inf")
        )


class Breaks(LogitsProcessor):
    """Raises where the custom argument `break_in` says."""

    def __init__(self, vllm_config: Any, req_states: LogitsProcRequestState) -> None:
        self.breaking = False

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        if (sampling_params.extra_args or {}).get("break_in") == "validate_params":
            raise RuntimeError("a mistake in the plugin's validate_params")

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        self.breaking |= (sampling_params.extra_args or {}).get("break_in") == "apply"
        return self.breaking

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        if self.breaking:
            raise RuntimeError("a mistake in the plugin's apply")
        return logits


class OfV1(LogitsProcessorV1):
    """Of the interface that Model Runner V1 has."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None: ...

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: Any) -> None: ...

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits
