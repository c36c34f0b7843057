# SPDX-License-Identifier: Apache-2.0
"""Implementations that stand in for the engine's Triton kernels.

vLLM's own dispatcher replaces a kernel by name. Only those are here that the supported
configurations launch: a kernel that is missing fails loudly, since Triton's launcher is a
placeholder.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from vllm.triton_utils import dispatcher

from vllm_anvil.ops.cache import compute_slot_mapping


def _compute_slot_mapping(
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc_ptr: torch.Tensor,
    positions_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    block_table_stride: int,
    slot_mapping_ptr: torch.Tensor,
    KV_CACHE_BLOCK_SIZE: int,
    TOTAL_CP_WORLD_SIZE: int,
    TOTAL_CP_RANK: int,
    CP_KV_CACHE_INTERLEAVE_SIZE: int,
    PAD_ID: int,
    BLOCK_SIZE: int,
) -> None:
    """Parameters are the kernel's own, in its order, so that launches are forwarded by name.

    Shapes: query_start_loc [requests + 1] int32, positions [num_tokens] int64, block_table
    [max requests, max blocks] int32; writes slot_mapping[:max_num_tokens], int64.
    """
    compute_slot_mapping(
        query_start_loc_ptr,
        positions_ptr,
        block_table_ptr,
        slot_mapping_ptr[:max_num_tokens],
        num_tokens,
        KV_CACHE_BLOCK_SIZE,
        TOTAL_CP_WORLD_SIZE,
        TOTAL_CP_RANK,
        CP_KV_CACHE_INTERLEAVE_SIZE,
        PAD_ID,
    )


OVERRIDES: dict[str, Callable[..., Any]] = {
    "vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel": _compute_slot_mapping,
}


def _has_odd_attribute(module: ModuleType) -> bool:
    for value in list(getattr(module, "__dict__", {}).values()):
        try:
            if hasattr(value, "__dict__") and not isinstance(vars(value), Mapping):
                return True
        except Exception:
            return True
    return False


@contextmanager
def _without_odd_modules() -> Iterator[None]:
    """Hides modules that vLLM's scan fails on: it reads the `__dict__` of every attribute of every
    module as a mapping, and llvmlite's library handle, for one, makes up whatever is asked of it.
    """
    odd = {name: module for name, module in list(sys.modules.items()) if _has_odd_attribute(module)}
    for name in odd:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.modules.update(odd)


def register() -> None:
    """Installs the overrides that are not installed yet; may be called any number of times."""
    missing = {
        name: implementation
        for name, implementation in OVERRIDES.items()
        if name not in dispatcher._registry
    }
    if missing:
        with warnings.catch_warnings(), _without_odd_modules():
            # vLLM looks at every attribute of every module, torch's deprecated ones as well.
            warnings.simplefilter("ignore", FutureWarning)
            dispatcher.register_kernels(missing)
