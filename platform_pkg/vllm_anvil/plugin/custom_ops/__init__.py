# SPDX-License-Identifier: Apache-2.0
"""Layers of the engine in the device's form, plugged in through vLLM's `register_oot`."""

from __future__ import annotations

_registered = False


def register() -> None:
    """Makes vLLM build these layers in this process. Re-entrant: vLLM refuses a second class."""
    global _registered
    if _registered:
        return
    _registered = True

    from vllm.model_executor.custom_op import CustomOp, PluggableLayer

    from vllm_anvil.plugin.custom_ops.embedding import AnvilVocabParallelEmbedding
    from vllm_anvil.plugin.custom_ops.norm import AnvilRMSNorm

    CustomOp.register_oot(AnvilRMSNorm, name="RMSNorm")
    PluggableLayer.register_oot(AnvilVocabParallelEmbedding, name="VocabParallelEmbedding")
