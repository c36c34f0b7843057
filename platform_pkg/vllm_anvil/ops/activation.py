# SPDX-License-Identifier: Apache-2.0
"""Gated activations: one half of the last dimension, through a function, times the other half.

Arithmetic is float32 whatever the dtype is, and the result is rounded once, when it is stored.
"""

import torch
from torch import Tensor

import vllm_anvil.ops  # noqa: F401  the fakes below need the ops to exist


def silu_and_mul(x: Tensor) -> Tensor:
    """``silu(x[..., :size]) * x[..., size:]`` with ``silu(t) = t / (1 + exp(-t))``.

    Args:
        x: ``[..., 2 * size]`` float32, bfloat16 or float16, any strides. Rows without gaps are read
            where they lie, others are copied first.

    Returns:
        ``[..., size]`` of ``x``'s dtype, contiguous; shares no memory with ``x``.

    Raises:
        TypeError: the dtype is none of these.
        ValueError: the last dimension of ``x`` is odd.
    """
    return torch.ops.anvil.silu_and_mul(x)


def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """``gelu(x[..., :size]) * x[..., size:]``.

    Args:
        x: ``[..., 2 * size]`` float32, bfloat16 or float16, any strides. Rows without gaps are read
            where they lie, others are copied first.
        approximate: "none": ``gelu(t) = t * (1 + erf(t / sqrt(2))) / 2``; "tanh":
            ``t * (1 + tanh(sqrt(2 / pi) * (t + 0.044715 * t**3))) / 2``. Where ``t`` is far below 0
            both keep the accuracy that these formulas lose.

    Returns:
        ``[..., size]`` of ``x``'s dtype, contiguous; shares no memory with ``x``.

    Raises:
        TypeError: the dtype is none of these.
        ValueError: the last dimension of ``x`` is odd, or ``approximate`` is neither of the two.
    """
    return torch.ops.anvil.gelu_and_mul(x, approximate)


@torch.library.register_fake("anvil::silu_and_mul")
def _silu_and_mul(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


@torch.library.register_fake("anvil::gelu_and_mul")
def _gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
