# SPDX-License-Identifier: Apache-2.0
"""What a machine can do at best: the ceilings against which benchmarks hold their figures.

Both ops use all cores: the device's workers, or PyTorch's threads on CPU tensors. A figure is only
worth something beside others of the same minute: run these between the calls that are measured.
"""

import torch
from torch import Tensor

import vllm_anvil.ops  # noqa: F401  the fakes below need the ops to exist


def ceiling_read(buffer: Tensor) -> Tensor:
    """Reads every byte of the buffer once; bytes over time is the read bandwidth.

    Args:
        buffer: any shape and dtype, contiguous; several times the last cache's size, unless it is
            a cache's bandwidth that is wanted.

    Returns:
        ``[1]`` int64: the sum of the buffer's 64-bit words and of the bytes behind the last of
        them, wrapping around.

    Raises:
        ValueError: the buffer is not contiguous.
    """
    return torch.ops.anvil.ceiling_read(buffer)


def ceiling_arithmetic(seed: Tensor, steps: int) -> Tensor:
    """Multiplies and adds in registers on every core; operations over time is the peak.

    float32 and float16 run at float32's peak. bfloat16 takes the processor's dot products of
    bfloat16 pairs where the active instruction set has them, float32's arithmetic otherwise.

    Args:
        seed: any shape, float32, bfloat16 or float16, contiguous, not empty: the numbers that are
            computed with, of moderate size.
        steps: rounds, of a fixed number of operations each. A million takes in the order of 10 ms.

    Returns:
        ``[2]`` float64: the operations done by all cores (a multiplication and an addition are
        two), and the sum of all that was computed, for which nothing can have been left out.

    Raises:
        TypeError: the dtype is another one.
        ValueError: ``seed`` is empty or not contiguous, or ``steps`` is negative.
    """
    return torch.ops.anvil.ceiling_arithmetic(seed, steps)


@torch.library.register_fake("anvil::ceiling_read")
def _ceiling_read(buffer: Tensor) -> Tensor:
    return buffer.new_empty((1,), dtype=torch.int64)


@torch.library.register_fake("anvil::ceiling_arithmetic")
def _ceiling_arithmetic(seed: Tensor, steps: int) -> Tensor:
    return seed.new_empty((2,), dtype=torch.float64)
