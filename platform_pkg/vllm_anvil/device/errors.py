# SPDX-License-Identifier: Apache-2.0
"""Why the device cannot be loaded, said once and clearly."""

from __future__ import annotations

import sys
from importlib import import_module, metadata
from types import ModuleType

import torch

from vllm_anvil.selection import REBUILD, minor


class DeviceUnavailableError(ImportError):
    """The compiled module cannot be used in this environment; the message says how to mend it."""


def check_build(built_for: str, installed: str) -> None:
    """Raises DeviceUnavailableError unless torch `installed` has the minor version `built_for`.

    PyTorch's C++ interface changes between minor versions: a module built for another one fails
    with undefined symbols, or worse, runs and corrupts memory.
    """
    if minor(built_for) != minor(installed):
        raise DeviceUnavailableError(
            f"vllm_anvil._C was built for torch {built_for}, but torch {installed} is installed. "
            f"{REBUILD}"
        )


def load_extension() -> ModuleType:
    """Imports and returns `vllm_anvil._C`.

    Raises:
        DeviceUnavailableError: it was never built, was built for another torch, does not load, or
            comes too late.
    """
    try:
        build_info = import_module("vllm_anvil._build_info")
    except ImportError:
        raise DeviceUnavailableError(
            f"vllm_anvil has no compiled module: its installation is incomplete. {REBUILD}"
        ) from None
    check_build(build_info.TORCH_VERSION, metadata.version("torch"))
    if "vllm_anvil._C" not in sys.modules and hasattr(torch.ops.anvil, "write_kv_cache"):
        # The library defines the ops, and torch ends a process that defines an op twice.
        raise DeviceUnavailableError(
            "the anvil device cannot be loaded into this process any more: torch.ops.anvil runs by "
            "its references here (vllm_anvil.references.registration). Import vllm_anvil.device "
            "before anything that registers them, or use another process."
        )
    try:
        return import_module("vllm_anvil._C")
    except ImportError as error:
        raise DeviceUnavailableError(f"vllm_anvil._C does not load ({error}). {REBUILD}") from error
