# SPDX-License-Identifier: Apache-2.0
"""References of vllm_anvil.ops.ceiling: the same work by torch's own kernels, for other devices."""

import torch
from torch import Tensor

# Rows and columns of the matrices that are multiplied: enough for a device to reach its peak.
_SIZE = 1024


def ceiling_read(buffer: Tensor) -> Tensor:
    data = buffer.reshape(-1).view(torch.uint8)
    whole = data.numel() // 8 * 8
    if data.data_ptr() % 8:
        data = data.clone()
    words = data[:whole].view(torch.int64).sum()
    return (words + data[whole:].sum(dtype=torch.int64)).reshape(1)


def ceiling_arithmetic(seed: Tensor, steps: int) -> Tensor:
    numbers = seed.flatten()
    numbers = numbers.repeat(-(-_SIZE * _SIZE // numbers.numel()))[: _SIZE * _SIZE]
    matrix = numbers.view(_SIZE, _SIZE)
    checksum = numbers.new_zeros((), dtype=torch.float64)
    for _ in range(steps):
        checksum += (matrix @ matrix)[0].sum(dtype=torch.float64)
    operations = checksum.new_full((), 2.0 * _SIZE**3 * steps)
    return torch.stack((operations, checksum))
