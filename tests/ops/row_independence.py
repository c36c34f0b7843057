# SPDX-License-Identifier: Apache-2.0
"""Whether the rows of a batch are computed by themselves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from vllm_anvil import device as anvil


@contextmanager
def device_threads(count: int) -> Iterator[None]:
    """As many threads share the work of the device's ops inside."""
    before = anvil.get_num_threads()
    anvil.set_num_threads(count)
    try:
        yield
    finally:
        anvil.set_num_threads(before)


def check_rows_are_independent(call: Callable[[Tensor], Tensor], rows: Tensor) -> None:
    """Bit for bit: by itself, among others in another order, and for any number of threads."""
    together = call(rows)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(5)).to(rows.device)
    assert torch.equal(call(rows[order]), together[order])
    for row in range(0, len(rows), 7):
        assert torch.equal(call(rows[row : row + 1])[0], together[row])
    for number in (1, 2, 3):
        with device_threads(number):
            assert torch.equal(call(rows), together)
