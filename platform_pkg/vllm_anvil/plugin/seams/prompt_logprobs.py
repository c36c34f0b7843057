# SPDX-License-Identifier: Apache-2.0
"""Seam: log-probabilities of prompts, where an adapter changes the language-model head.

What vLLM does
    `PromptLogprobsWorker` (vllm/v1/worker/gpu/sample/prompt_logprob.py) computes logits of a
    prompt's tokens by the model's `compute_logits`, whose layer for adapters takes every row for
    one that is sampled from: the first request's adapter is applied to the first token, and so on.
What is changed
    While it computes them, the platform's wrapper goes by the adapters of those tokens
    (plugin/lora/wrapper.py). They are a slice of the step's hidden states, which says which ones.
Checked against
    vllm 0.32.
Unnecessary when
    The engine says which rows it wants logits of.
Test that fails then
    tests/plugin/test_seams.py::test_prompt_logprobs_is_needed
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor


def apply() -> None:
    from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker

    for name in ("compute_prompt_logprobs", "compute_prompt_token_id_logprobs"):
        compute = getattr(PromptLogprobsWorker, name)
        if not hasattr(compute, "__wrapped__"):
            setattr(PromptLogprobsWorker, name, _by_token(compute))


def _by_token(compute: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compute)
    def by_token(
        self: Any, logits_of: Callable[[Tensor], Tensor], hidden_states: Tensor, *args: Any
    ) -> Any:
        wrapper = _wrapper_of(getattr(logits_of, "__self__", None))
        if wrapper is None:
            return compute(self, logits_of, hidden_states, *args)

        def logits_of_tokens(states: Tensor) -> Tensor:
            bytes_before = states.data_ptr() - hidden_states.data_ptr()
            begin = bytes_before // (hidden_states.stride(0) * hidden_states.element_size())
            with wrapper.logits_of_tokens(begin, begin + len(states)):
                return logits_of(states)

        return compute(self, logits_of_tokens, hidden_states, *args)

    return by_token


def _wrapper_of(model: Any) -> Any:
    """The platform's wrapper for the language model, or None without adapters."""
    manager = getattr(model, "lora_manager", None)
    # A multimodal model has others besides, behind it.
    return None if manager is None else next(iter(manager.punica_wrapper_mapping.values()))
