# SPDX-License-Identifier: Apache-2.0
"""Softmax over the last dimension, in float32 whatever the dtype of the values is.

A row depends neither on the other rows nor on the number of threads. One that has NaN or +inf, or
in which all is -inf, becomes NaN everywhere, as with torch.softmax.
"""

import torch
from torch import Tensor

import vllm_anvil.ops  # noqa: F401  the fakes below need the ops to exist


def softmax(x: Tensor) -> Tensor:
    """``exp(x) / sum(exp(x))``; 0 where ``x`` is -inf.

    Args:
        x: ``[..., size]`` float32, bfloat16 or float16, any strides. Rows without gaps are read
            where they lie, others are copied first.

    Returns:
        ``x``'s shape, float32, contiguous; shares no memory with ``x``.

    Raises:
        TypeError: the dtype is none of these.
        ValueError: ``x`` has no dimension.
    """
    return torch.ops.anvil.softmax(x)


def log_softmax(x: Tensor) -> Tensor:
    """``x - log(sum(exp(x)))``; -inf where ``x`` is.

    Probabilities near 1 keep their accuracy: their logarithm is not rounded to 0.

    Args:
        x: ``[..., size]`` float32, bfloat16 or float16, any strides. Rows without gaps are read
            where they lie, others are copied first.

    Returns:
        ``x``'s shape, float32, contiguous; shares no memory with ``x``.

    Raises:
        TypeError: the dtype is none of these.
        ValueError: ``x`` has no dimension.
    """
    return torch.ops.anvil.log_softmax(x)


@torch.library.register_fake("anvil::softmax")
def _softmax(x: Tensor) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.float32)


@torch.library.register_fake("anvil::log_softmax")
def _log_softmax(x: Tensor) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.float32)
