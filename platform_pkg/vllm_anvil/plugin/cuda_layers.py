# SPDX-License-Identifier: Apache-2.0
"""Anvil's layers on a CUDA platform, where their ops run by the references."""

from __future__ import annotations

from typing import Any

from vllm.model_executor import custom_op

from vllm_anvil.plugin import custom_ops, op_arguments


def register() -> None:
    """Makes vLLM build Anvil's layers in this process, and run them as it does out of tree.

    On a CUDA platform the engine calls a layer's `forward_cuda`, which would be the engine's own.
    Experts stay the engine's, which has kernels for them there. May be called again.
    """
    op_arguments.DEVICES.add("cuda")
    custom_ops.register(without=("UnquantizedFusedMoEMethod",))
    layer: Any
    for layer in registered():
        if issubclass(layer, custom_op.CustomOp) and "forward_cuda" not in vars(layer):
            layer.forward_cuda = layer.forward_oot


def registered() -> list[type]:
    """Anvil's layers that vLLM builds in place of its own."""
    package = __name__.partition(".")[0]
    return [
        layer
        for layer in custom_op.op_registry_oot.values()
        if layer.__module__.partition(".")[0] == package
    ]
