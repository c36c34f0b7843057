# SPDX-License-Identifier: Apache-2.0
"""Kernels of vLLM's samplers."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_anvil.ops import sampling
from vllm_anvil.plugin.triton_overrides.routing import Grid


def topk_topp(
    grid: Grid,
    LOGITS: Tensor,
    LOGITS_STRIDE_0: int,
    BUFFER: Tensor,
    PERCENTILE_TO_STD_TABLE: Tensor,
    NORMAL_CDF_TO_SIGMA_TABLE: Tensor,
    K: Tensor,
    P: Tensor,
    BATCH_SIZE: int,
    VOCAB_SIZE: int,
    MASK_VALUE: float,
    BLOCK_SIZE: int,
    BLOCK_SIZE_TRUNC: int,
    TOPK_ENABLED: bool,
    TOPP_ENABLED: bool,
    SPLIT_COVERS_PONLY: bool,
) -> bool:
    """Top-k and top-p masks of logits [BATCH_SIZE, VOCAB_SIZE] float32, in place.

    The kernel searches for the boundary; this one finds it exactly, by the same rules. Programs
    share the rows whatever the grid is. A launch that leaves some rows to other kernels is theirs.
    """
    k = K if TOPK_ENABLED else None
    p = P if TOPP_ENABLED else None
    rows_fit = (
        LOGITS.shape == (BATCH_SIZE, VOCAB_SIZE)
        and LOGITS.stride(1) == 1
        and (BATCH_SIZE == 1 or LOGITS.stride(0) == LOGITS_STRIDE_0)
    )
    if (
        SPLIT_COVERS_PONLY
        or not rows_fit
        or not _on_device(LOGITS, torch.float32)
        or not (k is None or _is_list(k, torch.int32, BATCH_SIZE))
        or not (p is None or _is_list(p, torch.float32, BATCH_SIZE))
    ):
        return False
    sampling.topk_topp(LOGITS, k, p, MASK_VALUE)
    return True


def _on_device(tensor: Tensor, dtype: torch.dtype) -> bool:
    return tensor.dtype == dtype and tensor.device.type == "anvil"


def _is_list(tensor: Tensor, dtype: torch.dtype, length: int) -> bool:
    """Without gaps, as a kernel reads what it is given the address of."""
    return _on_device(tensor, dtype) and tensor.shape == (length,) and tensor.is_contiguous()
