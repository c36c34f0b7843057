# SPDX-License-Identifier: Apache-2.0
"""References of vllm_anvil.ops.embedding."""

import torch
from torch import Tensor

from .gemm import unpack_linear


def embedding(ids: Tensor, weight: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    rows = weight.index_select(0, ids.flatten()).view(*ids.shape, weight.shape[1])
    return rows if dtype is None else rows.to(dtype)


def packed_embedding(
    ids: Tensor, packed: Tensor, rows: int, hidden: int, dtype: torch.dtype | None = None
) -> Tensor:
    return embedding(ids, unpack_linear(packed, rows, hidden), dtype)
