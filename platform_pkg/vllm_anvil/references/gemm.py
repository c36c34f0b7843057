# SPDX-License-Identifier: Apache-2.0
"""References of vllm_anvil.ops.gemm."""

from torch import Tensor

from .precision import compute_dtype


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    dtype = compute_dtype(input, weight, bias)
    result = input.to(dtype) @ weight.to(dtype).T
    return result if bias is None else result + bias.to(dtype)
