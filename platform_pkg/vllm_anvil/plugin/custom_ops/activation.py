# SPDX-License-Identifier: Apache-2.0
"""Gated activations: one half of the last dimension, through the activation, times the other.

`MulAndSilu` stays the engine's own: its gate is the second half, and the op would want the halves
swapped first. Activations without a gate, and those with a clamp, a threshold or another function,
have no op of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor
from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul

import vllm_anvil.ops  # noqa: F401  registers torch.ops.anvil
from vllm_anvil.plugin.op_arguments import note_fallback, takes


class AnvilSiluAndMul(SiluAndMul):
    """[..., 2 * d] -> [..., d]: silu(x[..., :d]) * x[..., d:]."""

    def forward_oot(self, x: Tensor) -> Tensor:
        if not takes(x):
            note_fallback("SiluAndMul", x=x)
            return self.forward_native(x)
        return torch.ops.anvil.silu_and_mul.default(x)


class AnvilGeluAndMul(GeluAndMul):
    """[..., 2 * d] -> [..., d]: gelu(x[..., :d]) * x[..., d:], exact or by tanh."""

    def forward_oot(self, x: Tensor) -> Tensor:
        if not takes(x):
            note_fallback("GeluAndMul", x=x)
            return self.forward_native(x)
        return torch.ops.anvil.gelu_and_mul.default(x, self.approximate)
