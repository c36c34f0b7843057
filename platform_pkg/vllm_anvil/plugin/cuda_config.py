# SPDX-License-Identifier: Apache-2.0
"""What the CUDA reference path decides in a VllmConfig, and what it refuses.

The calls are those of plugin/engine_config.py. What is not named here is the engine's business:
quantised weights, mixtures of experts and state-space layers run by the engine's own CUDA kernels.
"""

from __future__ import annotations

import os

import vllm.envs as vllm_envs
from vllm.config import VllmConfig
from vllm.logger import init_logger

from vllm_anvil.plugin import attention, eager
from vllm_anvil.plugin.cuda_platform import NAME
from vllm_anvil.plugin.refusal import Refusal, refuse

logger = init_logger("vllm.plugins.anvil.config")

IMPLEMENTATION = "ANVIL_ATTENTION_IMPL"
_chosen: str | None = None  # what was put there for the last configuration

REFUSALS = (
    Refusal(
        "--enable-lora",
        lambda c: c.lora_config is not None,
        "its layers are not proven under adapters. Serve a checkpoint with the adapter merged",
    ),
    Refusal(
        "--speculative-config",
        lambda c: c.speculative_config is not None,
        "the attention backend plans each step on the host, which knows no rejected tokens. "
        "Leave it out",
    ),
    Refusal(
        "--kv-transfer-config",
        lambda c: c.kv_transfer_config is not None,
        "the attention backend serves no connector. Leave it out",
    ),
    Refusal(
        "--kv-offloading-size",
        lambda c: c.cache_config.kv_offloading_size is not None,
        "the attention backend serves no connector. Leave it out",
    ),
    Refusal(
        "--kv-cache-dtype",
        lambda c: (
            not attention.register().get_class().supports_kv_cache_dtype(c.cache_config.cache_dtype)
        ),
        "the attention backend reads no caches with scales among their elements, or with several "
        "elements in a byte. Use auto, bfloat16, float16, fp8_e4m3 or fp8_e5m2",
    ),
    Refusal(
        "--decode-context-parallel-size",
        lambda c: c.parallel_config.decode_context_parallel_size > 1,
        "the attention backend does not split a sequence over devices",
    ),
    Refusal(
        "--prefill-context-parallel-size",
        lambda c: c.parallel_config.prefill_context_parallel_size > 1,
        "the attention backend does not split a sequence over devices",
    ),
    Refusal(
        "--enable-dbo",
        lambda c: c.parallel_config.use_ubatching,
        "the attention backend does not split a batch into two. Leave it out",
    ),
    Refusal(
        "VLLM_BATCH_INVARIANT=1",
        lambda c: vllm_envs.VLLM_BATCH_INVARIANT,
        "the attention backend does not promise it. Unset it",
    ),
)


def apply_defaults(config: VllmConfig) -> None:
    """Chooses eager mode where the user left it open."""
    eager.prefer(config)


def refuse_unsupported(config: VllmConfig) -> None:
    """Raises ValueError with one line for each option that cannot work."""
    refuse(config, REFUSALS, NAME)
    if config.model_config is not None:
        _choose_attention(config)


def _choose_attention(config: VllmConfig) -> None:
    """Leaves in ANVIL_ATTENTION_IMPL, for this process and the workers, what computes attention:
    what the user named, else the Triton kernel where it serves the model, else the reference."""
    global _chosen
    if os.environ.get(IMPLEMENTATION, "").strip() in ("", _chosen):
        os.environ[IMPLEMENTATION] = _chosen = "triton"
        try:
            attention.check_implementation(config)
        except ValueError as error:
            logger.info("The torch reference computes attention, as %s", error)
            os.environ[IMPLEMENTATION] = _chosen = "reference"
    attention.check_implementation(config)


def update(config: VllmConfig, worker_cls: str) -> None:
    """Sets the worker (where the user named none) and eager mode."""
    if config.parallel_config.worker_cls == "auto":
        config.parallel_config.worker_cls = worker_cls
    eager.enforce(config, NAME)
