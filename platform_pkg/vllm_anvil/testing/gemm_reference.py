# SPDX-License-Identifier: Apache-2.0
"""References of vllm_anvil.ops.gemm in plain torch, for any device."""

from torch import Tensor


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``input @ weight.T + bias`` in float64; shapes as in `vllm_anvil.ops.gemm.linear`."""
    result = input.double() @ weight.double().T
    return result if bias is None else result + bias.double()
