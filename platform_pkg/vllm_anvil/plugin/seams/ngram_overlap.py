# SPDX-License-Identifier: Apache-2.0
"""Seam: steps that overlap with the scheduling of the next ones, with drafts by n-grams.

What vLLM does
    `vllm.config.vllm.VllmConfig` turns asynchronous scheduling off for the method `ngram`, and
    refuses it where it is asked for. The reason is Model Runner V1, which looks for n-grams in
    Python on the host. Model Runner V2 looks for them in a kernel on the device, by the same
    speculator for `ngram` and for `ngram_gpu`, which the engine lets overlap.
What is changed
    `EngineArgs.create_speculative_config` gives `ngram_gpu` where `ngram` is asked for. Speculation
    is Model Runner V2's alone on this platform. Every process of the engine checks the
    configuration again, and finds nothing to object to.
Checked against
    vllm 0.32.
Unnecessary when
    The engine asks which model runner it is.
Test that fails then
    tests/plugin/test_seams.py::test_ngram_overlap_is_needed
"""

from __future__ import annotations

import functools
from typing import Any


def apply() -> None:
    from vllm.engine.arg_utils import EngineArgs

    create = EngineArgs.create_speculative_config
    if hasattr(create, "__wrapped__"):
        return

    @functools.wraps(create)
    def create_overlapping(*args: Any, **kwargs: Any) -> Any:
        config = create(*args, **kwargs)
        if config is not None and config.method == "ngram":
            config.method = "ngram_gpu"
        return config

    EngineArgs.create_speculative_config = create_overlapping
