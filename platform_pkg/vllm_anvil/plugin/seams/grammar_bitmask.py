# SPDX-License-Identifier: Apache-2.0
"""Seam: structured output masks logits with a kernel that is compiled for the device.

What vLLM does
    `vllm.v1.structured_output.utils.apply_grammar_bitmask`, which
    `vllm.v1.worker.gpu_model_runner` imports by name, hands logits that are not on the CPU to
    xgrammar. xgrammar knows CUDA, ROCm and the CPU, and compiles a kernel with TorchInductor for
    any other device; Inductor has no code generator for this one.
What is changed
    The runner's name means a function that calls vLLM's own with the logits' memory as a CPU
    tensor, no copy, once the device is done with it. vLLM's code for the CPU, and xgrammar's
    kernel for it, do the rest, so mixed and reordered batches are vLLM's business as ever.
Checked against
    vllm 0.32, xgrammar 0.2.
Unnecessary when
    xgrammar takes an implementation for the device, or the platform chooses the kernel.
Test that fails then
    tests/plugin/test_seams.py::test_grammar_bitmask_is_needed
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.structured_output import utils

import vllm_anvil.device as anvil


def apply_grammar_bitmask(
    scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: torch.Tensor
) -> None:
    """Sets what the grammars forbid to -inf, in place. logits: [rows, vocabulary], any float."""
    anvil.current_stream(logits.device).synchronize()
    utils.apply_grammar_bitmask(
        scheduler_output, grammar_output, input_batch, anvil.host_alias(logits)
    )


def apply() -> None:
    from vllm.v1.worker import gpu_model_runner

    gpu_model_runner.apply_grammar_bitmask = apply_grammar_bitmask
