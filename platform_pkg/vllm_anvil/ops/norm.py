# SPDX-License-Identifier: Apache-2.0
"""Norms over the last dimension.

Arithmetic is float32 or better whatever the dtypes are, and a result is rounded once, when it is
stored. A row depends neither on the other rows nor on the number of threads.
"""

import torch
from torch import Tensor

import vllm_anvil.ops  # noqa: F401  the fakes below need the ops to exist


def rms_norm(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> Tensor:
    """``x / sqrt(mean(x**2) + epsilon) * (weight + weight_offset)``.

    Args:
        x: ``[..., hidden]`` float32, bfloat16 or float16, any strides. Rows without gaps are read
            where they lie, others are copied first.
        weight: ``[hidden]`` of any of these dtypes, or None: nothing is multiplied.
        epsilon: added to the mean square.
        variance_size: the mean is over the first so many elements of a row, from 1 to ``hidden``;
            None: over all.
        weight_offset: 1.0 for checkpoints that store ``weight - 1``, as Gemma's do.

    Returns:
        ``x``'s shape and dtype, contiguous; shares no memory with the arguments.

    Raises:
        TypeError: a dtype is none of these.
        ValueError: ``weight`` has another length, ``variance_size`` is out of range, or devices
            differ.
    """
    return torch.ops.anvil.rms_norm(x, weight, epsilon, variance_size, weight_offset)


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """``rms_norm(total, ...)`` and ``total`` itself, for ``total = x + residual`` in float32.

    The norm is taken of the total before it is rounded to ``residual``'s dtype.

    Args:
        x: ``[..., hidden]`` float32, bfloat16 or float16, any strides.
        residual: ``x``'s shape, of any of these dtypes, any strides.
        weight: as for :func:`rms_norm`; likewise the arguments after it.

    Returns:
        The norm in ``x``'s dtype and the total in ``residual``'s, both of ``x``'s shape and
        contiguous; they share no memory with the arguments.

    Raises:
        TypeError: a dtype is none of these.
        ValueError: as :func:`rms_norm`, and if ``residual`` has another shape than ``x``.
    """
    return torch.ops.anvil.fused_add_rms_norm(
        x, residual, weight, epsilon, variance_size, weight_offset
    )


def fused_add_rms_norm_(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> None:
    """:func:`fused_add_rms_norm` in place: the norm into ``x``, the total into ``residual``.

    Args:
        x: ``[..., hidden]`` float32, bfloat16 or float16, rows without gaps and at any distance,
            **written**.
        residual: likewise, of ``x``'s shape, **written**. Shares no memory with ``x``.
        weight: as for :func:`rms_norm`, and shares no memory with the two; likewise the arguments
            after it.

    Raises:
        TypeError: a dtype is none of these.
        ValueError: as :func:`fused_add_rms_norm`, and if a tensor that is written has rows with
            gaps, elements that share memory (an expanded tensor), or shares memory with another
            argument.
    """
    torch.ops.anvil.fused_add_rms_norm_(x, residual, weight, epsilon, variance_size, weight_offset)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float) -> Tensor:
    """``(x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias``, with the biased variance.

    Args:
        x: ``[..., hidden]`` float32, bfloat16 or float16, any strides. Rows without gaps are read
            where they lie, others are copied first.
        weight: ``[hidden]`` of any of these dtypes, or None: nothing is multiplied.
        bias: ``[hidden]`` of any of these dtypes, or None: nothing is added.
        epsilon: added to the variance.

    Returns:
        ``x``'s shape and dtype, contiguous; shares no memory with the arguments.

    Raises:
        TypeError: a dtype is none of these.
        ValueError: ``weight`` or ``bias`` has another length, or devices differ.
    """
    return torch.ops.anvil.layer_norm(x, weight, bias, epsilon)


@torch.library.register_fake("anvil::rms_norm")
def _rms_norm(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("anvil::fused_add_rms_norm")
def _fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), residual.new_empty(x.shape)


@torch.library.register_fake("anvil::fused_add_rms_norm_")
def _fused_add_rms_norm_(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> None:
    return None


@torch.library.register_fake("anvil::layer_norm")
def _layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float) -> Tensor:
    return x.new_empty(x.shape)
