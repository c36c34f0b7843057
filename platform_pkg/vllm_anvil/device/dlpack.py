# SPDX-License-Identifier: Apache-2.0
"""DLPack for tensors of the device.

torch exports a device it does not know by name as an extension device, but its check compares the
device's type with "privateuse1", which no renamed backend has. Unnecessary once
`Tensor.__dlpack_device__` asks for the registered name.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.dlpack import DLDeviceType


def install() -> None:
    """Teaches `Tensor.__dlpack_device__` this backend; other tensors go torch's way. Re-entrant."""
    original = torch.Tensor.__dlpack_device__
    if getattr(original, "_anvil", False):
        return

    @functools.wraps(original)
    def dlpack_device(self: torch.Tensor) -> tuple[Any, int]:
        if self.device.type == "anvil":
            return (DLDeviceType.kDLExtDev, self.device.index)
        return original(self)

    dlpack_device._anvil = True  # type: ignore[attr-defined]
    torch.Tensor.__dlpack_device__ = dlpack_device  # type: ignore[method-assign]
