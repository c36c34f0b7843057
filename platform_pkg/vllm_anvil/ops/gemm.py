# SPDX-License-Identifier: Apache-2.0
"""Matrix products with weights."""

import torch
from torch import Tensor

import vllm_anvil.ops  # noqa: F401  the fakes below need the ops to exist


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``input @ weight.T + bias`` in float32 arithmetic, over half-precision weights as they are.

    A row of the result does not depend on the other rows of ``input``.

    Args:
        input: ``[..., depth]`` float32, bfloat16 or float16, any strides.
        weight: ``[columns, depth]`` bfloat16 or float16, rows contiguous.
        bias: ``[columns]`` of any floating dtype, or None.

    Returns:
        ``[..., columns]`` float32, contiguous.

    Raises:
        TypeError: a dtype is none of these.
        ValueError: shapes contradict one another, or devices differ.
    """
    return torch.ops.anvil.linear(input, weight, bias)


@torch.library.register_fake("anvil::linear")
def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return input.new_empty((*input.shape[:-1], weight.shape[0]), dtype=torch.float32)
