# SPDX-License-Identifier: Apache-2.0
"""Device memory: every byte a tensor holds is counted, limits are hard, errors say what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch

import vllm_anvil.device

MIB = 1 << 20


def held() -> int:
    torch.anvil.synchronize()  # memory that another stream still used is freed by then
    return torch.anvil.memory_allocated()


def test_allocations_are_counted_and_returned() -> None:
    before = held()
    x = torch.empty(8 * MIB, dtype=torch.uint8, device="anvil")
    assert held() - before >= 8 * MIB
    y = x.view(2, -1)
    del x
    assert held() - before >= 8 * MIB
    del y
    assert held() == before


def test_outputs_of_fallback_ops_are_counted() -> None:
    x = torch.rand(512, 512, device="anvil")
    before = held()
    results = [x @ x, x.exp(), torch.sort(x), torch.cat([x, x]), x.to(torch.float64)]
    expected = MIB * (1 + 1 + 1 + 2 + 2 + 2)
    assert expected <= held() - before <= expected * 1.02
    del results
    assert held() == before


def test_scratch_of_fallback_ops_shows_in_the_peak() -> None:
    x = torch.rand(1 << 20, device="anvil")
    torch.anvil.reset_peak_memory_stats()
    before = held()
    x.sort()
    assert held() == before  # waits: a first call's scratch is counted when it runs
    assert torch.anvil.max_memory_allocated() - before >= 12 * MIB


def test_cpu_tensors_are_not_counted() -> None:
    before = held()
    x = torch.rand(4 * MIB)
    y = x * 2
    assert held() == before
    del x, y


def test_zeros_are_zero_also_in_reused_memory() -> None:
    for _ in range(3):
        x = torch.zeros(3 * MIB, dtype=torch.uint8, device="anvil")
        assert int(x.max()) == 0
        x.fill_(255)
        del x
    assert torch.zeros(5, 7, dtype=torch.bfloat16, device="anvil").sum().item() == 0
    assert torch.zeros(0, 3, device="anvil").shape == (0, 3)
    with pytest.raises(RuntimeError, match="negative"):
        torch.zeros(-1, device="anvil")


def test_large_zeros_touch_no_pages() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    torch.anvil.empty_cache()
    before = resident()
    x = torch.zeros(512 * MIB, dtype=torch.uint8, device="anvil")
    assert resident() - before < 16 * MIB
    assert x[-1].item() == 0


def test_tags_and_summary() -> None:
    with torch.anvil.memory_tag("weights"):
        x = torch.empty(4 * MIB, dtype=torch.uint8, device="anvil")
        y = x.clone()
    tags = vllm_anvil.device.memory.memory_by_tag()
    assert tags["weights"]["allocated_bytes"] >= 8 * MIB
    summary = torch.anvil.memory_summary()
    assert "weights" in summary and "limit" in summary and "anvil:0" in summary
    del x, y
    torch.anvil.empty_cache()
    assert vllm_anvil.device.memory.memory_by_tag()["weights"] == {
        "allocated_bytes": 0,
        "reserved_bytes": 0,
    }


def test_accelerator_memory_functions_agree() -> None:
    x = torch.empty(MIB, dtype=torch.uint8, device="anvil")
    assert torch.accelerator.memory_allocated() == torch.anvil.memory_allocated() >= MIB
    assert torch.accelerator.memory_reserved() == torch.anvil.memory_reserved()
    assert (
        torch.accelerator.get_memory_info()[1] == torch.anvil.get_device_properties().total_memory
    )
    stats = torch.accelerator.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.anvil.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == torch.anvil.memory_allocated()
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()
    assert torch.accelerator.device_count() == torch.anvil.device_count()
    torch.accelerator.set_device_index(0)
    assert torch.accelerator.current_device_index() == 0
    del x


def test_out_of_memory_says_what_and_why_and_leaves_the_device_usable() -> None:
    code = (
        "import torch, vllm_anvil.device\n"
        "with torch.anvil.memory_tag('weights'):\n"
        "    keep = torch.empty(40 << 20, dtype=torch.uint8, device='anvil')\n"
        "try:\n    torch.empty(40 << 20, dtype=torch.uint8, device='anvil')\n"
        "except torch.OutOfMemoryError as e:\n    print(e)\n"
        "try:\n    keep + keep\n"
        "except torch.OutOfMemoryError as e:\n    print('in an op too')\n"
        "assert torch.accelerator.memory_stats()['num_ooms'] == 2\n"
        "del keep\n"
        "assert torch.empty(40 << 20, dtype=torch.uint8, device='anvil').numel()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ANVIL_DEVICE_MEMORY": "64MiB"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"40(\.0+)? MiB", done.stdout) and re.search(r"64(\.0+)? MiB", done.stdout)
    assert "weights" in done.stdout and "ANVIL_DEVICE_MEMORY" in done.stdout
    assert "in an op too" in done.stdout


def test_pinned_memory() -> None:
    x = torch.arange(10).pin_memory()
    assert x.is_pinned() and x[3:].is_pinned() and x.device.type == "cpu"
    assert not torch.arange(10).is_pinned()
    assert torch.empty(5, pin_memory=True).is_pinned()
    assert torch.equal(x.to("anvil", non_blocking=True).cpu(), torch.arange(10))
    with pytest.raises(RuntimeError, match="[Pp]in"):
        torch.empty(5, device="anvil", pin_memory=True)


def test_suspended_memory_comes_back_where_it_was() -> None:
    """A graph replays over it afterwards."""
    torch.manual_seed(0)
    with torch.anvil.memory_tag("suspended"):
        weight = torch.randn(700, 900, device="anvil")
    x = torch.randn(3, 700, device="anvil")
    expected, address = (x @ weight).cpu(), weight.data_ptr()
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        y = x @ weight
    for folder, factor in (("/var/tmp", 1), (None, 0)):
        before = torch.anvil.memory_by_tag()["suspended"]["reserved_bytes"]
        assert torch.anvil.suspend_memory("suspended", folder) == before
        assert torch.anvil.memory_by_tag()["suspended"]["reserved_bytes"] == 0
        with pytest.raises(RuntimeError, match="suspended is suspended already"):
            torch.anvil.suspend_memory("suspended")
        with torch.anvil.memory_tag("suspended"), pytest.raises(RuntimeError, match="asleep"):
            torch.empty(10, device="anvil")
        assert torch.anvil.resume_memory("suspended") == before
        graph.replay()
        torch.testing.assert_close(y.cpu(), expected * factor)
    assert weight.data_ptr() == address
    with pytest.raises(RuntimeError, match="is not suspended"):
        torch.anvil.resume_memory("suspended")
    with pytest.raises(RuntimeError, match=r"/no/such/folder.*\[ANVIL_ERROR_SYSTEM\]"):
        torch.anvil.suspend_memory("suspended", "/no/such/folder")
