# SPDX-License-Identifier: Apache-2.0
"""Seam: the matrices of adapter layers, laid out for the device's products.

What vLLM does
    The layers of `vllm.lora.layers` keep each adapter's matrices in tensors of the largest rank,
    `lora_a_stacked` and `lora_b_stacked`, and hand all of these to the platform's wrapper.
What is changed
    B lies column by column, behind a view that the layers write to as before, and which ranks are
    in use is counted when an adapter is set (plugin/lora/matrices.py). Without that a step reads
    matrices full of zeros for every layer that an adapter does not target.
Checked against
    vllm 0.32.
Unnecessary when
    The engine lets a platform allocate the layers' matrices.
Test that fails then
    tests/plugin/test_seams.py::test_lora_layers_is_needed
"""

from __future__ import annotations

from torch import nn
from vllm.config import VllmConfig

from vllm_anvil.plugin.lora import matrices


def adapt(model: nn.Module, config: VllmConfig) -> None:
    if config.lora_config is None:
        return
    from vllm.lora.layers import BaseLayerWithLoRA

    for layer in model.modules():
        if isinstance(layer, BaseLayerWithLoRA) and hasattr(layer, "lora_b_stacked"):
            matrices.prepare(layer)
