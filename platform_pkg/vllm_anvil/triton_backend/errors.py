# SPDX-License-Identifier: Apache-2.0
"""What the compiler raises."""

from __future__ import annotations

from vllm_anvil.triton_backend.ttir.model import Location


class UnsupportedKernel(Exception):
    """A kernel uses what the compiler does not understand; says which operation, and where.

    The message grows by the kernel's name where that is known (`in_kernel`).
    """

    def __init__(self, reason: str, operation: str = "", location: Location | None = None):
        self.reason = reason
        self.operation = operation
        self.location = location
        self.kernel = ""
        super().__init__(reason)

    def in_kernel(self, kernel: str) -> UnsupportedKernel:
        self.kernel = kernel
        return self

    def __str__(self) -> str:
        subject = f"operation `{self.operation}`: " if self.operation else ""
        kernel = f"kernel {self.kernel}: " if self.kernel else ""
        place = f" (at {self.location})" if self.location else ""
        return f"{kernel}{subject}{self.reason}{place}"
