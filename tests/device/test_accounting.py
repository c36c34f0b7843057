# SPDX-License-Identifier: Apache-2.0
"""Memory tells the truth: figures and limit follow what tensors hold, to the byte.

The model here runs on fallback ops alone, whose results are made by PyTorch's CPU kernels. A shadow
count of live storages, kept beside it, is what the device has to agree with.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import vllm_anvil.device  # noqa: F401

MIB = 1 << 20


class ShadowCount(TorchDispatchMode):
    """Bytes of all storages on the device that ops have returned and something still holds."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[StorageWeakRef, int] = {}
        self.peak = 0

    def count(self) -> int:
        self.live = {ref: size for ref, size in self.live.items() if not ref.expired()}
        return sum(self.live.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "anvil":
                storage = leaf.untyped_storage()
                self.live[StorageWeakRef(storage)] = storage.nbytes()
        self.peak = max(self.peak, self.count())
        return result


def model(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """Fallback ops only; lives of different lengths, views, in-place ops, results of many sizes."""
    for number, weight in enumerate(weights):
        hidden = x @ weight
        gate = torch.nn.functional.silu(hidden)
        hidden.mul_(gate)
        parts = torch.cat([hidden, gate[: hidden.shape[0] // 2]])
        mean = parts.mean(-1, keepdim=True)
        x = (parts - mean)[: x.shape[0]].softmax(-1).transpose(0, 1).contiguous().transpose(0, 1)
        if number % 3 == 2:
            x = torch.nn.functional.embedding(torch.arange(x.shape[0], device=x.device) // 2, x)
    return x


@pytest.fixture(autouse=True)
def nothing_left_of_other_tests():
    """Tensors in cycles that other tests left would go at any time, and with them their memory."""
    gc.collect()
    torch.anvil.synchronize()


def requested(kind: str) -> int:
    return torch.anvil.memory_stats()[f"requested_bytes.all.{kind}"]


@pytest.mark.parametrize("known", [False, True], ids=["first pass", "known"])
def test_peak_is_the_most_that_was_live_at_once(known: bool) -> None:
    """To the byte once the device knows the calls.

    What a kernel allocates besides its result is not known before its first run; it is counted when
    it runs, perhaps beside what the caller has made meanwhile. Here that is little.
    """
    scratch = 0 if known else 16 << 10
    with torch.inference_mode():
        weights = [torch.rand(64, 64, device="anvil") for _ in range(7)]
        x = torch.rand(97 if known else 96, 64, device="anvil")  # shapes of its own each time
        if known:
            model(x, weights)
        for _ in range(3 if known else 1):
            torch.anvil.synchronize()
            base = requested("current")
            torch.anvil.reset_peak_memory_stats()
            with ShadowCount() as shadow:
                result = model(x, weights)
            torch.anvil.synchronize()
            live = requested("current") - base
            assert live == shadow.count() == result.untyped_storage().nbytes()
            assert shadow.peak <= requested("peak") - base <= shadow.peak + scratch
            del result
            assert requested("current") == base


def test_running_ahead_of_the_device_costs_no_memory() -> None:
    with torch.inference_mode():
        x = torch.rand(256, 1024, device="anvil")
        x + 1  # learn
        torch.anvil.synchronize()
        torch.anvil.reset_peak_memory_stats()
        base = requested("current")
        torch.anvil._sleep(100)
        y = x
        for _ in range(200):
            y = y + 1
        assert not torch.anvil.current_stream().query()
        scalar = 64  # what the kernel makes of the number
        assert 2 * MIB <= requested("peak") - base <= 2 * MIB + scalar
        torch.anvil.synchronize()
        torch.testing.assert_close(y.cpu(), x.cpu() + 200)


LIMIT = """
import torch, vllm_anvil.device
MIB = 1 << 20
with torch.inference_mode():
    x = torch.ones(8 * MIB, device="anvil")  # 32 MiB
    kept = [x]
    try:
        while True:
            kept.append(kept[-1].exp())
    except torch.OutOfMemoryError as error:
        message = str(error)
    print(len(kept), torch.anvil.memory_allocated() // MIB, torch.anvil.memory_reserved() // MIB)
    for part in ("32 MiB asked for", "Limit 256 MiB", "held 256 MiB", "ANVIL_DEVICE_MEMORY"):
        assert part in message, (part, message)
    kept.pop()
    kept.append(kept[-1].exp())  # fits again, exactly once
    try:
        kept[-1].exp()
        raise SystemExit("more fits than the limit says")
    except torch.OutOfMemoryError:
        pass
    del kept, x
    with torch.anvil.memory_tag("kv_cache"):
        cache = torch.empty(250 * MIB, dtype=torch.uint8, device="anvil")
    try:
        torch.ones(8 * MIB, device="anvil")
        raise SystemExit("more fits than the limit says")
    except torch.OutOfMemoryError as error:
        assert "kv_cache 250 MiB" in str(error), error
    assert "kv_cache" in torch.anvil.memory_summary()
    del cache
    torch.anvil.empty_cache()
    assert torch.anvil.memory_reserved() == 0
"""


def test_limit_is_reached_exactly_where_tensors_say() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMIT],
        env=os.environ | {"ANVIL_DEVICE_MEMORY": "256MiB", "ANVIL_DEVICES": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["8", "256", "256"]


def test_fresh_caches_are_zero_without_touching_pages() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    torch.anvil.synchronize()
    before = resident()
    cache = torch.zeros(512 * MIB, dtype=torch.uint8, device="anvil")
    torch.anvil.synchronize()
    assert resident() - before < 32 * MIB
    assert cache[:: 16 * MIB].sum().item() == 0
    again = cache.nbytes
    del cache
    torch.anvil.empty_cache()
    assert resident() - before < 32 * MIB and again == 512 * MIB
    dirty = torch.full((64 * MIB,), 7, dtype=torch.uint8, device="anvil")
    del dirty
    clean = torch.zeros(64 * MIB, dtype=torch.uint8, device="anvil")
    assert clean.sum().item() == 0
