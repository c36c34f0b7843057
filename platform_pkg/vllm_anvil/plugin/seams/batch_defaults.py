# SPDX-License-Identifier: Apache-2.0
"""Seam: how many tokens and requests a step takes when the user does not say.

What vLLM does
    `vllm.engine.arg_utils.EngineArgs.get_batch_defaults` sizes a step by the device's memory, as
    if it told a GPU's speed: up to 16384 tokens and 1024 requests. It knows smaller figures for
    the CPU and TPU platforms only.
What is changed
    On this platform it answers with steps that the host's cores finish in a fraction of the time.
    A chunk of 2048 tokens keeps every core busy in matrix products already; more of them only
    delay the other requests, and the engine's start, which profiles one step of full size.
Checked against
    vllm 0.32.
Unnecessary when
    The engine asks the platform.
Test that fails then
    tests/plugin/test_seams.py::test_batch_defaults_is_needed
"""

from __future__ import annotations

from vllm.usage.usage_lib import UsageContext

MAX_NUM_BATCHED_TOKENS = 2048
MAX_NUM_SEQS = 128

Defaults = dict[UsageContext | None, int]


def get_batch_defaults(cls: type, world_size: int) -> tuple[Defaults, Defaults]:
    """Tokens and requests of a step, for each context that vLLM has a default for."""
    contexts = (UsageContext.LLM_CLASS, UsageContext.OPENAI_API_SERVER)
    return (
        dict.fromkeys(contexts, MAX_NUM_BATCHED_TOKENS),
        dict.fromkeys(contexts, MAX_NUM_SEQS),
    )


def apply() -> None:
    from vllm.engine.arg_utils import EngineArgs

    EngineArgs.get_batch_defaults = classmethod(get_batch_defaults)
