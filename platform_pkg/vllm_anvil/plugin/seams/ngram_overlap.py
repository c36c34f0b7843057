# SPDX-License-Identifier: Apache-2.0
"""Seam: steps that overlap with the scheduling of the next ones, with drafts by n-grams.

What vLLM does
    `vllm.config.vllm.VllmConfig` turns asynchronous scheduling off for the method `ngram`, and
    refuses it where it is asked for. The reason is Model Runner V1, which looks for n-grams in
    Python on the host. Model Runner V2 looks for them in a kernel on the device, by the same
    speculator for `ngram` and for `ngram_gpu`, which the engine lets overlap.
What is changed
    The engine takes `ngram` for a method that overlaps, as it takes `ngram_gpu`. Speculation is
    Model Runner V2's alone on this platform.
Checked against
    vllm 0.32.
Unnecessary when
    The engine asks which model runner it is.
Test that fails then
    tests/plugin/test_seams.py::test_ngram_overlap_is_needed
"""

from __future__ import annotations

from typing import Any, Literal


def apply() -> None:
    from vllm.config import vllm as configuration

    # Read by these two checks, and by nothing else there.
    names: Any = configuration
    names.NgramGPUTypes = Literal["ngram", "ngram_gpu"]
