# SPDX-License-Identifier: Apache-2.0
"""Layers of the engine that run by the device's ops, plugged in through vLLM's `register_oot`.

vLLM builds the class registered here wherever a model asks for the engine's class of that name;
a subclass under another name stays the engine's. What a layer of ours cannot hand to its op, by
dtype or layout, it hands to the engine's own `forward_native`
(`vllm_anvil.plugin.op_arguments.fallbacks` counts these calls).
`compilation_config.custom_ops=["-SiluAndMul"]` turns one off, by the name below.

docs/design/layers.md lists where every op of the device is plugged in.
"""

from __future__ import annotations

from collections.abc import Collection

_registered = False


def layers() -> dict[str, type]:
    """The engine's class names -> the classes built in their place. `VocabParallelEmbedding` is a
    pluggable layer of the engine, all others are custom ops."""
    from vllm_anvil.plugin.custom_ops import activation, embedding, experts, norm, rotary

    return {
        "RMSNorm": norm.AnvilRMSNorm,
        "GemmaRMSNorm": norm.AnvilGemmaRMSNorm,
        "LayerNorm": norm.AnvilLayerNorm,
        "SiluAndMul": activation.AnvilSiluAndMul,
        "GeluAndMul": activation.AnvilGeluAndMul,
        "VocabParallelEmbedding": embedding.AnvilVocabParallelEmbedding,
        "UnquantizedFusedMoEMethod": experts.AnvilUnquantizedFusedMoEMethod,
        **rotary.LAYERS,
    }


def register(without: Collection[str] = ()) -> None:
    """Makes vLLM build these layers in this process, without those named. Doing it again changes
    nothing: vLLM refuses a second class."""
    global _registered
    if _registered:
        return
    _registered = True

    from vllm.model_executor.custom_op import CustomOp, PluggableLayer

    for name, layer in layers().items():
        if name in without:
            continue
        seam = PluggableLayer if issubclass(layer, PluggableLayer) else CustomOp
        seam.register_oot(layer, name=name)
