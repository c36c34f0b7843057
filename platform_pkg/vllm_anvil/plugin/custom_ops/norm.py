# SPDX-License-Identifier: Apache-2.0
"""Normalisations, with their weights in float32.

A float32 weight is a few KiB a layer and holds the checkpoint's values exactly, so that nothing is
rounded between the sum of squares and the result, and a layer takes hidden states of any dtype
(seams/hidden_states.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm import ir
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, LayerNorm, RMSNorm

import vllm_anvil.ops  # noqa: F401  registers torch.ops.anvil
from vllm_anvil.plugin.op_arguments import note_fallback, takes


class AnvilRMSNorm(RMSNorm):
    """vLLM's RMSNorm, whose arithmetic is float32 up to the product with the weight.

    That product has the weight's dtype; the result has the input's either way. The layer runs by
    the engine's IR ops `rms_norm` and `fused_add_rms_norm`, and so by plugin/ir_kernels.py or by
    the provider that the user prefers. With a residual it may write to both arguments and return
    them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["dtype"] = torch.float32
        super().__init__(*args, **kwargs)
        self.weight.requires_grad_(False)

    def forward_oot(
        self, x: Tensor, residual: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        # As `forward_native`, without `weight.data`, which is a call of the dispatcher.
        if residual is None:
            weight = self.weight if self.pass_weight else None
            return ir.ops.rms_norm(x, weight, self.variance_epsilon, self.variance_size_override)
        weight = self.weight if self.pass_weight_add else None
        return ir.ops.fused_add_rms_norm.maybe_inplace(
            x, residual, weight, self.variance_epsilon, self.variance_size_override
        )


class AnvilGemmaRMSNorm(GemmaRMSNorm):
    """vLLM's RMSNorm of Gemma models, which scales by 1 + weight: the op adds the 1, where the
    engine's layer makes a new weight at each call.

    `forward` returns new tensors and writes to neither argument, as the engine's layer does.
    """

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__(hidden_size, eps)
        self.weight = torch.nn.Parameter(
            torch.zeros(hidden_size, dtype=torch.float32), requires_grad=False
        )

    def forward_oot(
        self, x: Tensor, residual: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        weight = self.weight
        if not takes(x, residual, weight) or (residual is not None and residual.dtype != x.dtype):
            note_fallback("GemmaRMSNorm", x=x, residual=residual)
            return self.forward_native(x, residual)
        if residual is None:
            return torch.ops.anvil.rms_norm.default(
                x, weight, self.variance_epsilon, weight_offset=1.0
            )
        return torch.ops.anvil.fused_add_rms_norm.default(
            x, residual, weight, self.variance_epsilon, weight_offset=1.0
        )


class AnvilLayerNorm(LayerNorm):
    """vLLM's LayerNorm. Sums are float32; the result has the input's dtype."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["dtype"] = torch.float32
        super().__init__(*args, **kwargs)
        for parameter in self.parameters():
            parameter.requires_grad_(False)

    def forward_oot(self, x: Tensor) -> Tensor:
        if not takes(x, self.weight, self.bias):
            note_fallback("LayerNorm", x=x)
            return self.forward_native(x)
        return torch.ops.anvil.layer_norm.default(x, self.weight, self.bias, self.eps)
