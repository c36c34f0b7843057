# SPDX-License-Identifier: Apache-2.0
"""From TTIR to LLVM IR, one module per family of operations."""

from vllm_anvil.triton_backend.lower import (  # noqa: F401  (they register their rules)
    atomics,
    calls,
    control,
    diagnostics,
    dot,
    dot_scaled,
    histogram,
    memory,
    program,
    reduction,
    scan,
    shape,
)
from vllm_anvil.triton_backend.lower.kernel import KernelArgument, LoweredKernel, lower_kernel

__all__ = ["KernelArgument", "LoweredKernel", "lower_kernel"]
