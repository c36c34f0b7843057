# SPDX-License-Identifier: Apache-2.0
"""References of vllm_anvil.ops.activation."""

import torch.nn.functional as F
from torch import Tensor

from .precision import compute_dtype


def silu_and_mul(x: Tensor) -> Tensor:
    gate, up = x.to(compute_dtype(x)).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(x.dtype)


def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    gate, up = x.to(compute_dtype(x)).chunk(2, dim=-1)
    return (F.gelu(gate, approximate=approximate) * up).to(x.dtype)
