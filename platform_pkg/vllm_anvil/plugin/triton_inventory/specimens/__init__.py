# SPDX-License-Identifier: Apache-2.0
"""How the engine launches its kernels, where neither the launches' source nor names tell.

A module for each area of the engine; the first area that a kernel's module belongs to is its own.
"""

from __future__ import annotations

from typing import Any

from vllm_anvil.plugin.triton_inventory.discovery import TritonFunction
from vllm_anvil.plugin.triton_inventory.specimens import (
    attention,
    layers,
    linear_attention,
    lora,
    mamba,
    models,
    moe,
    quantisation,
    sample,
    speculative,
    worker,
)
from vllm_anvil.plugin.triton_inventory.specimens.area import Area

AREAS: tuple[Area, ...] = (
    sample.AREA,
    speculative.AREA,
    worker.AREA,
    lora.AREA,
    attention.AREA,
    moe.AREA,
    mamba.AREA,
    quantisation.AREA,
    linear_attention.AREA,
    models.AREA,
    layers.AREA,
)


def area_of(kernel: TritonFunction) -> Area:
    """The area that the kernel's module belongs to."""
    return next(area for area in AREAS if area.has(kernel.module))


def exceptions(kernel: TritonFunction) -> list[dict[str, Any]]:
    """What the tables say about the kernel's arguments, for each of its specimens."""
    return area_of(kernel).exceptions(kernel)
