# SPDX-License-Identifier: Apache-2.0
"""The device as Triton's runtime sees it: what is current, how kernels are loaded and launched."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from vllm_anvil.triton_backend.launcher import make_launcher

# No limit of the host's: Triton compares what a kernel wants on a GPU with it.
UNLIMITED = (1 << 31) - 1
# What a benchmark overwrites between two runs: the last-level cache, within reason.
SMALLEST_CACHE, LARGEST_CACHE = 8 << 20, 64 << 20  # bytes


def active_rivals() -> list[str]:
    """Names of other backends whose driver is active."""
    # With torch in the process, NVIDIA's and AMD's drivers ask it; without, they would initialise
    # CUDA themselves, after which the process must not fork.
    import torch  # noqa: F401

    return [
        name
        for name, one in backends.items()
        if one.driver is not AnvilTritonDriver and one.driver.is_active()
    ]


class DriverUtilities:
    """What Triton expects of a driver's native helper module (`driver.utils`)."""

    @staticmethod
    def load_binary(
        name: str, kernel: bytes, shared: int, device: int
    ) -> tuple[Any, int, int, int, int]:
        """(module, function, registers, spills, most threads of a program)."""
        from vllm_anvil.triton_backend.loader import load

        loaded = load(name, kernel)
        return loaded.code, loaded.address, 0, 0, UNLIMITED

    @staticmethod
    def unload_module(module: Any) -> None:
        """Nothing to do: code is freed when nothing refers to it, queued launches included."""

    @staticmethod
    def get_device_properties(device: int) -> dict[str, Any]:
        """Limits that Triton checks; what the device is, too, except in a forked child."""
        import vllm_anvil.device as anvil
        from vllm_anvil import _C

        limits = {
            "max_shared_mem": UNLIMITED,
            "max_num_regs": UNLIMITED,
            "max_threads_per_sm": UNLIMITED,
            "warpSize": 1,
        }
        if _C.is_forked_child():
            return limits
        properties = anvil.get_device_properties(device)
        return {
            **limits,
            "name": properties.name,
            "multiprocessor_count": properties.multi_processor_count,
            "total_memory": properties.total_memory,
        }

    @staticmethod
    def set_printf_fifo_size(size: int) -> None:
        """Nothing to do: what kernels print goes to standard output as they run."""


class AnvilTritonDriver(DriverBase):
    """One per process; Triton makes it when the first kernel is launched."""

    def __init__(self) -> None:
        super().__init__()
        import vllm_anvil.device  # noqa: F401  (registers the device)
        from vllm_anvil import _C

        # Every launch asks for these two.
        self.get_current_device = _C.triton_current_device
        self.get_current_stream = _C.triton_current_stream
        self.set_current_device = _C.set_device
        self.launcher_cls = make_launcher
        self.utils = DriverUtilities()

    @staticmethod
    def is_active() -> bool:
        """Whether Triton compiles for anvil: no other backend runs here, or a user says so."""
        selected = os.environ.get("TRITON_DEFAULT_BACKEND")
        if selected:
            return selected in backends and backends[selected].driver is AnvilTritonDriver
        return not active_rivals()

    def get_current_target(self) -> GPUTarget:
        from vllm_anvil.triton_backend.emit.target import host_cpu

        return GPUTarget("cpu", host_cpu().name, 1)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("anvil", self.get_current_device())

    def get_device_interface(self) -> ModuleType:
        import vllm_anvil.device

        return vllm_anvil.device

    def map_python_to_cpp_type(self, ty: str) -> str:
        if ty.startswith("*"):
            return "void*"
        return {
            "i1": "bool",
            "u1": "bool",
            "fp16": "float",
            "bf16": "float",
            "fp32": "float",
            "f32": "float",
            "fp64": "double",
            **{f"i{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
            **{f"u{bits}": f"uint{bits}_t" for bits in (8, 16, 32, 64)},
        }[ty]

    def get_benchmarker(self) -> Any:
        # It takes times on the device (events of this driver's interface), each run on its own.
        from triton.testing import do_bench

        return do_bench

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.empty(_cache_bytes(), dtype=torch.int8, device=self.get_active_torch_device())

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()

    def allocate_default_profile_scratch(self, size: int, alignment: int, stream: Any) -> Any:
        import torch

        return torch.zeros(size, dtype=torch.int8, device=self.get_active_torch_device())


def _cache_bytes() -> int:
    try:
        found = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        found = 0
    return min(max(found, SMALLEST_CACHE), LARGEST_CACHE)
