# SPDX-License-Identifier: Apache-2.0
"""Seam: the device's view of pinned host memory.

What vLLM does
    `vllm.utils.torch_utils.get_accelerator_view_from_cpu_tensor` makes a device tensor over pinned
    memory of the host with an operator of CUDA or XPU, and raises ValueError on any other platform;
    whether there are such views it asks by whether memory can be pinned
    (`vllm.utils.platform_utils.is_uva_available`). Model Runner V2 keeps the state of its requests
    in them (`vllm.v1.worker.gpu.buffer_utils.UvaBuffer`).
What is changed
    The function, and the name under which `buffer_utils` imports it, means one that gives a tensor
    of the device over the same memory; here all memory is the host's.
Checked against
    vllm 0.32.
Unnecessary when
    The platform is asked for the view.
Test that fails then
    tests/plugin/test_seams.py::test_pinned_views_is_needed
"""

from __future__ import annotations

import sys

import torch
from vllm.utils import torch_utils

import vllm_anvil.device as anvil

FUNCTION = "get_accelerator_view_from_cpu_tensor"


def view(cpu_tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the current device over pinned memory, with the same shape, strides and dtype."""
    return anvil.device_alias(cpu_tensor)


def apply() -> None:
    original = getattr(torch_utils, FUNCTION)
    if original is view:
        return
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and vars(module).get(FUNCTION) is original:
            setattr(module, FUNCTION, view)
