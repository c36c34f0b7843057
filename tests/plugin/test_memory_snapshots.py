# SPDX-License-Identifier: Apache-2.0
"""What the engine is told about memory while other processes take and return some."""

from __future__ import annotations

import gc

import pytest
import torch
from vllm.utils.mem_utils import MemorySnapshot

import vllm_anvil.device as anvil  # noqa: F401  (registers the device)
from vllm_anvil.plugin.seams import memory_snapshots

GIB = 1 << 30
OWN_BYTES = 64 << 20


def profile(monkeypatch: pytest.MonkeyPatch, others: int) -> tuple[int, int]:
    """(what the engine takes to be consumed, by how much free memory fell), in bytes, where this
    process takes OWN_BYTES and others return so many; 0: there are no others."""
    device = torch.device("anvil", 0)
    free = 8 * GIB
    reserved = torch.accelerator.memory_reserved(device)
    returned = 0

    def memory_info(_: object = None) -> tuple[int, int]:
        taken = torch.accelerator.memory_reserved(device) - reserved
        return free - taken + returned, 16 * GIB

    monkeypatch.setattr(torch.accelerator, "get_memory_info", memory_info)
    first = MemorySnapshot(device=device)
    with memory_snapshots.memory_profiling(first, weights_memory=0) as result:
        held = torch.ones(OWN_BYTES, dtype=torch.uint8, device=device)
        returned = others
    fell = first.free_memory - result.after_profile.free_memory
    del held
    return result.total_consumed, fell


@pytest.fixture(autouse=True)
def _nothing_of_other_tests() -> None:
    """Tensors that wait for Python's garbage collection, as the profile makes it, are of no test's
    own memory."""
    gc.collect()
    torch.accelerator.empty_cache()


@pytest.mark.parametrize("others", [0, 2 * GIB])
def test_own_memory_is_counted_whatever_others_return(
    monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    consumed, fell = profile(monkeypatch, others)
    assert fell == consumed
    assert OWN_BYTES <= consumed <= 2 * OWN_BYTES


def test_memory_that_others_take_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    consumed, _ = profile(monkeypatch, -GIB)
    assert GIB + OWN_BYTES <= consumed <= GIB + 2 * OWN_BYTES
