# SPDX-License-Identifier: Apache-2.0
"""References of vllm_anvil.ops.softmax."""

import torch
from torch import Tensor

from .precision import compute_dtype, wide_dtype


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x.to(compute_dtype(x)), dim=-1).to(wide_dtype(x))


def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x.to(compute_dtype(x)), dim=-1).to(wide_dtype(x))
