# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel and PyTorch's counterpart, compares the results, then the times."""

from collections.abc import Callable

import torch
from triton.testing import do_bench


def compare(
    name: str,
    kernel: Callable[[], torch.Tensor],
    pytorch: Callable[[], torch.Tensor],
    tolerance: float,
) -> None:
    """Raises AssertionError where an element differs by more than `tolerance`, absolutely and
    relatively."""
    torch.testing.assert_close(kernel(), pytorch(), rtol=tolerance, atol=tolerance)
    ours, theirs = (do_bench(f, warmup=20, rep=100) for f in (kernel, pytorch))
    print(f"{name}: equal; Triton {ours:.3f} ms, PyTorch {theirs:.3f} ms")
