# SPDX-License-Identifier: Apache-2.0
"""Device tensors over pinned memory of the host."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import torch

import vllm_anvil.device as anvil


def test_both_sides_see_what_either_writes() -> None:
    host = torch.arange(24, dtype=torch.int32).reshape(4, 6).pin_memory()
    view = anvil.device_alias(host)
    assert view.device.type == "anvil" and view.shape == host.shape
    assert view.stride() == host.stride() and view.data_ptr() == host.data_ptr()
    host[1] = 50
    assert (view + 1).cpu().tolist() == (host + 1).tolist()
    view[2:].mul_(2)
    anvil.synchronize()
    assert host[2].tolist() == [24, 26, 28, 30, 32, 34]


def test_strides_and_offsets() -> None:
    host = torch.arange(24).reshape(4, 6).pin_memory()
    view = anvil.device_alias(host[1:, ::2])
    assert view.cpu().tolist() == [[6, 8, 10], [12, 14, 16], [18, 20, 22]]


def test_the_view_keeps_the_memory_and_work_keeps_the_view() -> None:
    host = torch.ones(1 << 20).pin_memory()
    view = anvil.device_alias(host)
    del host
    anvil._sleep(20)
    total = view.sum()
    del view
    gc.collect()
    other = torch.zeros(1 << 20).pin_memory()
    assert total.item() == 1 << 20 and other.sum() == 0


@pytest.mark.parametrize(
    "tensor", [torch.zeros(3), torch.zeros(3, device="anvil")], ids=["pageable", "device"]
)
def test_what_is_not_pinned_is_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="device_alias takes a"):
        anvil.device_alias(tensor)


def test_the_first_tensor_of_a_process_is_waited_for() -> None:
    program = """
import torch, vllm_anvil.device as anvil
host = torch.zeros(1000).pin_memory()
view = anvil.device_alias(host)
anvil._sleep(50)
view.fill_(7)
anvil.synchronize()
assert host.sum() == 7000, host.sum()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
