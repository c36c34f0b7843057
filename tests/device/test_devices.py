# SPDX-License-Identifier: Apache-2.0
"""Devices: count, properties, configuration errors, fork. Configuration is read once a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import vllm_anvil.device  # noqa: F401


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import torch, vllm_anvil.device\n" + code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_registered_under_its_name() -> None:
    assert torch._C._get_privateuse1_backend_name() == "anvil"
    assert torch.anvil is sys.modules["vllm_anvil.device"]
    assert torch.accelerator.current_accelerator() == torch.device("anvil")
    assert torch.anvil.is_available() and torch.anvil.device_count() >= 1


def test_properties_describe_this_process() -> None:
    properties = torch.anvil.get_device_properties(0)
    assert set(properties.cores) <= os.sched_getaffinity(0)
    assert properties.multi_processor_count == len(properties.cores) >= 1
    free, total = torch.anvil.mem_get_info(0)
    assert 0 < free <= total == properties.total_memory
    assert str(len(properties.cores)) in torch.anvil.get_device_name(0)


def test_devices_split_the_cores() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    done = run(
        "a, b = (torch.anvil.get_device_properties(i) for i in range(2))\n"
        "assert torch.anvil.device_count() == 2 and not set(a.cores) & set(b.cores)\n"
        "x = torch.ones(3, device='anvil:1')\n"
        "assert x.device == torch.device('anvil:1') and (x + x).device == x.device\n"
        "assert torch.zeros(2, device='anvil').device.index == 0\n"
        "with torch.anvil.device(1):\n"
        "    assert torch.anvil.current_device() == 1\n"
        "    assert torch.empty(2, device='anvil').device.index == 1\n"
        "assert torch.anvil.current_device() == 0\n"
        "y = x.to('anvil:0')\n"
        "assert y.device.index == 0 and y.tolist() == [1, 1, 1]\n"
        "try:\n    x + y\nexcept RuntimeError as e:\n    print(e)\n",
        ANVIL_DEVICES="2",
    )
    assert done.returncode == 0, done.stderr
    assert "anvil:1" in done.stdout and "anvil:0" in done.stdout


def test_visible_devices_hide_the_others() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    done = run(
        "print(torch.anvil.device_count(), torch.anvil.get_device_properties(0).physical_index)",
        ANVIL_DEVICES="2",
        ANVIL_VISIBLE_DEVICES="1",
    )
    assert done.stdout.split() == ["1", "1"], done.stderr


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ANVIL_DEVICES", "0"),
        ("ANVIL_DEVICES", "many"),
        ("ANVIL_DEVICES", "100000"),
        ("ANVIL_VISIBLE_DEVICES", "7"),
        ("ANVIL_VISIBLE_DEVICES", "0,0"),
        ("ANVIL_DEVICE_MEMORY", "-1"),
        ("ANVIL_DEVICE_MEMORY", "0"),
        ("ANVIL_DEVICE_MEMORY", "lots"),
    ],
)
def test_bad_configuration_is_one_clear_error(variable: str, value: str) -> None:
    done = run("torch.zeros(1, device='anvil')", **{variable: value})
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert variable in last and value in last, done.stderr
    # Asking whether there is a device never raises.
    assert run("assert not torch.anvil.is_available()", **{variable: value}).returncode == 0


def test_missing_device_is_named() -> None:
    with pytest.raises(RuntimeError, match="anvil:42"):
        torch.empty(1, device="anvil:42")
    with pytest.raises(RuntimeError):
        torch.anvil.set_device(42)


def test_forked_child_gets_a_clear_error() -> None:
    done = run(
        "import os\n"
        "x = torch.ones(2, device='anvil')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n        torch.ones(2, device='anvil')\n"
        "    except RuntimeError as e:\n"
        "        print('fork' in str(e).lower() and 'spawn' in str(e), flush=True)\n"
        "    os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "assert x.tolist() == [1, 1]\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True", done.stdout + done.stderr


def test_isa_can_be_forced_and_is_checked() -> None:
    for isa in torch.anvil.supported_isas():
        done = run("print(torch.anvil.active_isa())", ANVIL_ISA=isa)
        assert done.stdout.strip() == isa, done.stderr
    done = run("torch.anvil.active_isa()", ANVIL_ISA="mmx")
    assert done.returncode != 0 and "mmx" in done.stderr and "scalar" in done.stderr


def test_exit_is_clean_whatever_is_still_alive() -> None:
    done = run(
        "import threading\n"
        "keep = [torch.rand(1000, 1000, device='anvil') @ torch.rand(1000, 1000, device='anvil')]\n"
        "events = [torch.anvil.Event(enable_timing=True) for _ in range(3)]\n"
        "[e.record() for e in events]\n"
        "stream = torch.anvil.Stream()\n"
        "pinned = torch.empty(100, pin_memory=True)\n"
        "t = threading.Thread(target=lambda: keep.append(keep[0].sum())); t.start(); t.join()\n"
        "import sys; sys.keep = keep\n"
    )
    assert done.returncode == 0 and done.stderr == ""
