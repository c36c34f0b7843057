# SPDX-License-Identifier: Apache-2.0
"""The places where vLLM must be adapted, one module each.

A seam's header says what vLLM does there (module and symbol), what is changed, which versions it
was checked against, what would make it unnecessary, and the test that fails when it is. No other
module changes anything of vLLM or torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import VllmConfig

# Applied in this order. EVERY_PROCESS: when the platform is constructed, while much of vLLM is not
# imported yet. CONFIGURATION: before a configuration is made. ENGINE: in a process that configures
# or runs an engine, before it starts others. RAY_EXECUTOR: before Ray starts ranks. WORKER: before
# a worker builds anything.
EVERY_PROCESS = ("engine_metadata", "ray_devices", "environment_report")
CONFIGURATION = ("batch_defaults", "ngram_overlap")
ENGINE = ("worker_start", "pending_calls", "adapter_errors")
RAY_EXECUTOR = ("ray_environment",)
WORKER = (
    "torch_threads",
    "torch_cuda_names",
    "pinned_views",
    "group_capture",
    "pipeline_tokens",
    "kernel_warmup",
    "memory_snapshots",
    "grammar_bitmask",
    "batch_invariance",
    "unquantized_gemm",
    "expert_routing",
    "prompt_logprobs",
    "profiler_devices",
)
# Adapt a model that is loaded, in this order.
MODEL = ("hidden_states", "lora_layers", "weight_packing", "attention_steps")
ALL = EVERY_PROCESS + CONFIGURATION + ENGINE + RAY_EXECUTOR + WORKER + MODEL


def apply(names: Iterable[str]) -> None:
    """Applies seams in this process. Applying one again changes nothing."""
    for name in names:
        import_module(f"{__name__}.{name}").apply()


def adapt(model: nn.Module, config: VllmConfig) -> None:
    """Applies the seams of MODEL to a model that has been loaded."""
    for name in MODEL:
        import_module(f"{__name__}.{name}").adapt(model, config)
