# SPDX-License-Identifier: Apache-2.0
"""What the benchmark must know of a device: how to get it, its caches and its memory."""

from __future__ import annotations

import importlib
import os
import platform
from pathlib import Path
from typing import Any

import torch

from vllm_anvil.references import registration

# Where a device tells nothing about its caches.
UNKNOWN_CACHE = 64 << 20


def open_device(name: str) -> torch.device:
    """The device, with `torch.ops.anvil` complete in this process.

    The library `_C` is loaded for anvil, and for the CPU where it can be: its kernels run on CPU
    tensors too.

    Raises ValueError for a device that torch does not know or that is not there.
    """
    kind = name.partition(":")[0]
    if kind in ("anvil", "cpu"):
        try:
            importlib.import_module("vllm_anvil.device")
        except (ImportError, RuntimeError) as error:
            if kind == "anvil":
                raise ValueError(f"there is no anvil device here: {error}") from error
    registration.register()
    try:
        device = torch.device(name)
        # The backends of some devices come to life only with the first tensor.
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r} cannot be used: {error}") from error
    return device


def enable_triton(device: torch.device) -> None:
    """Lets Triton compile for the device in this process.

    Raises ImportError where it cannot: it is not installed, or a GPU's driver is the one in use.
    """
    if device.type in ("anvil", "cpu"):
        importlib.import_module("vllm_anvil.triton")


def describe(device: torch.device) -> dict[str, str]:
    """Name and software of the device, for records."""
    kind: Any = getattr(torch, device.type, None)
    if device.type != "cpu" and hasattr(kind, "get_device_name"):
        name = kind.get_device_name(device)
    else:
        name = _processor()
    facts = {"device": str(device), "name": name, "torch": torch.__version__}
    if device.type in ("cpu", "anvil"):
        facts["threads"] = str(torch.get_num_threads())
        facts["capability"] = torch.backends.cpu.get_cpu_capability()
    return facts


def last_level_cache(device: torch.device) -> int:
    """Bytes of the largest cache between the device's cores and its memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    if device.type not in ("cpu", "anvil"):
        return UNKNOWN_CACHE
    sizes = [
        _bytes(path.read_text())
        for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max(sizes, default=UNKNOWN_CACHE)


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated on the device now."""
    kind: Any = getattr(torch, device.type, None)
    if device.type != "cpu" and hasattr(kind, "mem_get_info"):
        return int(kind.mem_get_info(device)[0])
    return host_memory()


def host_memory() -> int:
    """Bytes of the host's memory that are free or can be freed."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _bytes(text: str) -> int:
    """ "32768K" as 33554432."""
    text = text.strip()
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
