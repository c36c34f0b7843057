# SPDX-License-Identifier: Apache-2.0
"""Devices: how many there are, which one is current, what each one is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vllm_anvil import _C

# What a user may pass where a device is meant: None is the current one.
DeviceLike = torch.device | str | int | None


@dataclass(frozen=True)
class DeviceProperties:
    """What one device is made of.

    Attributes:
        name: description with the processor's name and the number of cores.
        cores: logical CPU numbers whose threads run this device's work.
        numa_node: node that all cores belong to, -1 when they span several.
        total_memory: hard limit in bytes.
        physical_index: index before ANVIL_VISIBLE_DEVICES.
    """

    name: str
    cores: tuple[int, ...]
    numa_node: int
    total_memory: int
    physical_index: int

    @property
    def multi_processor_count(self) -> int:
        """Number of cores, under the name that other accelerators use."""
        return len(self.cores)


def device_index(device: DeviceLike) -> int:
    """Index of a device given as `torch.device`, string, number or None (the current one).

    Raises:
        ValueError: it is a device of another type.
    """
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device if device >= 0 else current_device()
    parsed = torch.device(device)
    if parsed.type != "anvil":
        raise ValueError(f"expected an anvil device, got {parsed}")
    return current_device() if parsed.index is None else parsed.index


def is_available() -> bool:
    """Whether there is at least one device. Never raises; `device_count` says what is wrong."""
    try:
        return device_count() > 0
    except RuntimeError:
        return False


def init() -> None:
    """Reads the configuration and makes the devices. Any other call does so when needed."""
    device_count()


def is_initialized() -> bool:
    return _C.is_initialized()


def is_in_use() -> bool:
    """Whether a device has been used, so that a forked child could not use it.

    Counting devices, reading their properties and choosing one is not yet use.
    """
    return _C.is_in_use()


def device_count() -> int:
    """Number of devices that this process sees.

    Raises:
        RuntimeError: an ANVIL_* variable cannot be used; the message names it and what it accepts.
    """
    return _C.device_count()


def current_device() -> int:
    return _C.current_device()


def set_device(device: DeviceLike) -> None:
    """Makes `device` current for this thread. Prefer the context manager `device`."""
    _C.set_device(device_index(device))


class device:
    """Context manager that makes a device current and restores the previous one."""

    def __init__(self, device: DeviceLike):
        self.idx = device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = current_device()
        _C.set_device(self.idx)

    def __exit__(self, *exc: Any) -> None:
        _C.set_device(self.prev_idx)


class device_of(device):
    """Context manager that makes a tensor's or storage's device current, if it is one of ours."""

    def __init__(self, obj: Any):
        super().__init__(obj.get_device() if obj.device.type == "anvil" else None)


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    return DeviceProperties(**_C.device_properties(device_index(device)))


def get_device_name(device: DeviceLike = None) -> str:
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> None:
    """CUDA's compute capability has no counterpart here: always None."""
    return None


def get_num_threads(device: DeviceLike = None) -> int:
    """How many threads share the work of an op of the device; by default one for each core."""
    return _C.worker_count(device_index(device))


def set_num_threads(count: int, device: DeviceLike = None) -> None:
    """From the next op on, `count` threads share the work of each op of the device.

    `torch.set_num_threads` counts for ops that run PyTorch's CPU kernel. More threads than cores
    only slow the device down; they show that results do not depend on the number.

    Raises:
        RuntimeError: `count` is below 1, or above 64 and the number of cores.
    """
    _C.set_worker_count(device_index(device), count)


def synchronize(device: DeviceLike = None) -> None:
    """Waits for all work on the device; raises the first error of a command since the last wait."""
    torch._C._accelerator_synchronizeDevice(device_index(device))


def is_bf16_supported() -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Types that `torch.autocast("anvil", dtype=...)` accepts."""
    return [torch.bfloat16, torch.float16]


def host_alias(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the memory of a device tensor, with its sizes, strides and offset.

    Nothing is copied: writes through either are seen by both, and either keeps the memory alive.
    Autograd does not follow the alias.

    Raises:
        RuntimeError: `tensor` is on another device.
        NotImplementedError: its layout has no storage (sparse).
    """
    return _C.host_alias(tensor)


def device_alias(tensor: torch.Tensor, device: torch.types.Device = None) -> torch.Tensor:
    """A device tensor over the memory of a pinned CPU tensor: its sizes, strides, offset and dtype.

    Nothing is copied: what the host writes, later commands read, and the other way round. It is for
    the caller to see to it that neither side writes what the other is still using. Either keeps the
    memory alive; it cannot be resized. Autograd does not follow the alias.

    Raises:
        RuntimeError: `tensor` is not on the CPU, or not in pinned memory.
    """
    return _C.device_alias(tensor, device_index(device))
