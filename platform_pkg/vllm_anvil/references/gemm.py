# SPDX-License-Identifier: Apache-2.0
"""References of vllm_anvil.ops.gemm."""

from torch import Tensor

from .precision import compute_dtype, wide_dtype


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    dtype = compute_dtype(input, weight, bias)
    result = input.to(dtype) @ weight.to(dtype).T
    if bias is not None:
        result = result + bias.to(dtype)
    return result.to(wide_dtype(input, weight, bias))
