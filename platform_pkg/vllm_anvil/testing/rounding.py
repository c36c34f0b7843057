# SPDX-License-Identifier: Apache-2.0
"""What storing a result may change."""

import torch
from torch import Tensor

from vllm_anvil.testing.op_case import UNIT

# Relative error of one float32 operation.
FLOAT32 = 2.0**-24


def rounding(expected: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest error of rounding `expected` to the nearest number of `dtype`, element by
    element, in float64."""
    size = expected.abs().double().clamp_min(torch.finfo(dtype).smallest_normal)
    return size * (UNIT[dtype] / 2)
