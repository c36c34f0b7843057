# SPDX-License-Identifier: Apache-2.0
"""The worker apart from an engine: which device it takes, and what it says of a device in trouble.

With an engine it is tested in test_engine.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vllm_anvil.plugin.worker import AnvilWorker

pytestmark = pytest.mark.usefixtures("platform")

TAKE_DEVICE = """
import json, os, sys
from types import SimpleNamespace
import torch
from vllm.platforms import current_platform, interface
from vllm_anvil.plugin.worker import AnvilWorker

def take(local_rank=0, **parallel):
    interface._assigned_physical_gpu_ids = None
    defaults = dict(
        assigned_physical_gpu_ids=None,
        distributed_executor_backend="mp",
        nnodes_within_dp=1,
        data_parallel_rank_local=None,
        data_parallel_index=0,
        world_size=1,
        world_size_across_dp=1,
    )
    config = SimpleNamespace(**defaults | parallel)
    worker = SimpleNamespace(parallel_config=config, local_rank=local_rank, rank=local_rank)
    device = AnvilWorker._take_device(worker)
    assert torch.accelerator.current_device_index() == device.index
    return device.index
"""


def test_ranks_land_apart(python: Any) -> None:
    result = python(
        TAKE_DEVICE
        + """
assert [take(0), take(1)] == [0, 1]
# Two replicas of one rank each, started by somebody else than the engine.
assert [take(data_parallel_rank_local=r) for r in (0, 1)] == [0, 1]
assert take(data_parallel_index=1) == 1
# A launcher that numbers ranks over all replicas does so itself.
assert take(1, distributed_executor_backend="external_launcher", data_parallel_index=1) == 1
# The slice that the engine gave the second replica, or --device-ids 1.
assert take(0, assigned_physical_gpu_ids=[1], data_parallel_rank_local=1) == 1
assert [take(r, assigned_physical_gpu_ids=[1, 0]) for r in (0, 1)] == [1, 0]
try:
    take(2)
except ValueError as error:
    assert "ANVIL_DEVICES=3" in str(error) and "2 anvil devices" in str(error), error
else:
    raise AssertionError
# A rank among several keeps to the cores of its device.
take(1, world_size_across_dp=2)
assert os.sched_getaffinity(0) == set(torch.anvil.get_device_properties(1).cores)
""",
        ANVIL_DEVICES="2",
    )
    assert result.returncode == 0, result.stderr


def test_assigned_devices_are_physical(python: Any) -> None:
    result = python(
        TAKE_DEVICE
        + """
# The process sees physical device 1 as its first and 0 as its second.
assert [take(r, assigned_physical_gpu_ids=[0, 1]) for r in (0, 1)] == [1, 0]
assert torch.anvil.get_device_properties(take(0)).physical_index == 1
""",
        ANVIL_DEVICES="2",
        ANVIL_VISIBLE_DEVICES="1,0",
    )
    assert result.returncode == 0, result.stderr


def test_health_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Any = SimpleNamespace(device=torch.device("anvil:0"), rank=3)
    AnvilWorker.check_health(worker)

    def synchronize(device: torch.device) -> None:
        raise RuntimeError("the command 'add' failed")

    monkeypatch.setattr(torch.accelerator, "synchronize", synchronize)
    with pytest.raises(RuntimeError, match=r"anvil:0 of rank 3 .* the command 'add' failed"):
        AnvilWorker.check_health(worker)


def test_initialize_cache_records_the_size() -> None:
    cache = SimpleNamespace(num_gpu_blocks=None, num_cpu_blocks=None)
    AnvilWorker.initialize_cache(SimpleNamespace(cache_config=cache), 7, 0)  # type: ignore[arg-type]
    assert (cache.num_gpu_blocks, cache.num_cpu_blocks) == (7, 0)
