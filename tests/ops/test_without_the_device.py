# SPDX-License-Identifier: Apache-2.0
"""Ops by their references alone, in a process that does not load the anvil device."""

from __future__ import annotations

import subprocess
import sys


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_references_registered_first_are_the_ops() -> None:
    code = """
import sys, torch
from vllm_anvil.references import registration
assert not registration.is_registered()
registration.register()
assert registration.is_registered()
from vllm_anvil.ops.cache import write_kv_cache
from vllm_anvil.ops.gemm import linear
assert "vllm_anvil._C" not in sys.modules and "vllm_anvil.device" not in sys.modules
assert torch._C._get_privateuse1_backend_name() == "privateuseone"
cache = torch.zeros(2, 3, 1, 4)
write_kv_cache(torch.ones(1, 1, 4), torch.ones(1, 1, 4), cache, cache.clone(), torch.tensor([4]))
assert cache[1, 1].eq(1).all() and cache.sum() == 4
assert linear(torch.ones(1, 2), torch.ones(3, 2).bfloat16()).tolist() == [[2.0] * 3]
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_the_device_cannot_come_after_them() -> None:
    done = run(
        "from vllm_anvil.references import registration; registration.register()\n"
        "try:\n    import vllm_anvil.device\nexcept ImportError as error:\n    print(error)"
    )
    assert done.returncode == 0, done.stderr
    assert "the anvil device cannot be loaded into this process any more" in done.stdout


def test_the_device_comes_first_otherwise() -> None:
    done = run(
        "import vllm_anvil.ops, torch, sys\n"
        "from vllm_anvil.references import registration; registration.register()\n"
        "print(torch._C._get_privateuse1_backend_name(), 'vllm_anvil._C' in sys.modules)"
    )
    assert done.stdout.split() == ["anvil", "True"], done.stderr
