# SPDX-License-Identifier: Apache-2.0
"""In which dtype a reference computes."""

import torch
from torch import Tensor


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """float64 if one of the tensors is, otherwise float32."""
    wide = any(tensor is not None and tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if wide else torch.float32
