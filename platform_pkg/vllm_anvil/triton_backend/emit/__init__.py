# SPDX-License-Identifier: Apache-2.0
"""LLVM: types, vectors, mathematics and machine code."""

from vllm_anvil.triton_backend.emit.objects import assembly, object_code
from vllm_anvil.triton_backend.emit.target import HostCpu, host_cpu

__all__ = ["HostCpu", "assembly", "host_cpu", "object_code"]
