# SPDX-License-Identifier: Apache-2.0
"""In which dtype a reference computes, and which its result has."""

import torch
from torch import Tensor

WITHOUT_FLOAT64 = ("mps",)


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """float64, which leaves nothing but the rounding of the result; float32 on devices without it,
    unless a tensor is float64 already."""
    known = [tensor for tensor in tensors if tensor is not None]
    if any(tensor.device.type in WITHOUT_FLOAT64 for tensor in known):
        return torch.float32
    return torch.float64


def wide_dtype(*tensors: Tensor | None) -> torch.dtype:
    """Of results that ops return in float32 whatever they are given: float64 where a tensor is."""
    wide = any(tensor is not None and tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if wide else torch.float32
