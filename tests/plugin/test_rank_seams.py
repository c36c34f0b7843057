# SPDX-License-Identifier: Apache-2.0
"""Seams of engines with several ranks: each is needed, and does what its header says.

As in test_seams.py; what changes a process for good runs in a subprocess.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("platform")


def test_group_capture_is_needed(python: Any) -> None:
    from vllm.distributed import parallel_state

    assert "CudaCommunicator, XpuCommunicator" in inspect.getsource(
        parallel_state.GroupCoordinator.graph_capture
    )
    result = python(
        """
import torch
from types import SimpleNamespace
from vllm.distributed.parallel_state import GroupCoordinator
from vllm.platforms import current_platform
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm_anvil.plugin.seams import group_capture, torch_cuda_names

torch_cuda_names.apply()
group_capture.apply()
group_capture.apply()
communicator = resolve_obj_by_qualname(current_platform.get_device_communicator_cls())
group = SimpleNamespace(device_communicator=communicator.__new__(communicator))
before = torch.anvil.current_stream()
with GroupCoordinator.graph_capture(group) as context:
    assert torch.anvil.current_stream() == context.stream != before
assert torch.anvil.current_stream() == before
# Others go the engine's way, which knows none of them.
try:
    with GroupCoordinator.graph_capture(SimpleNamespace(device_communicator=object())):
        raise SystemExit("captured")
except AssertionError:
    pass
"""
    )
    assert result.returncode == 0, result.stderr


def test_pipeline_tokens_is_needed(python: Any) -> None:
    from vllm.v1.worker.gpu import model_runner, pp_utils

    source = inspect.getsource(pp_utils.PPHandler.receive)
    assert "torch.distributed.broadcast(" in source and "self.broadcast_stream" in source
    assert "self.pp_handler = PPHandler(" in inspect.getsource(model_runner)
    result = python(
        """
from collections import deque
from types import SimpleNamespace
import numpy as np
import torch
from vllm.v1.worker.gpu import model_runner
from vllm_anvil.plugin.seams import pipeline_tokens, torch_cuda_names

torch_cuda_names.apply()
pipeline_tokens.apply()
handler = model_runner.PPHandler.__new__(model_runner.PPHandler)
assert type(handler) is pipeline_tokens.LatePPHandler
handler.__dict__.update(
    is_last_rank=False, last_rank=1, max_sample_len=1, num_speculative_steps=0,
    device=torch.device("anvil"), main_stream=torch.anvil.current_stream(), broadcast_group="group",
    queue=deque([None, None]), req_idx_gen_np=np.zeros(4, dtype=np.int32),
)
sent = []

def broadcast(tensor, src, group):
    assert (src, group) == (1, "group")
    tensor.copy_(sent.pop(0))

pipeline_tokens.dist = SimpleNamespace(broadcast=broadcast)

def step(slots, prompts=0):
    count = len(slots)
    return SimpleNamespace(
        num_reqs=count, idx_mapping=torch.tensor(slots, device="anvil"),
        idx_mapping_np=np.array(slots), num_computed_tokens_np=np.full(count, 5),
        num_scheduled_tokens=np.ones(count, dtype=int), max_seq_len_np=None,
        prefill_len_np=np.array([100] * prompts + [3] * (count - prompts)),
        is_prefilling_np=np.zeros(count, dtype=bool),
    )

def send(tokens):
    sent.append(torch.tensor(tokens).unsqueeze(1))
    sent.append(torch.tensor([[1] * len(tokens), [0] * len(tokens)], dtype=torch.int32))

# Two steps are begun before anything is received.
assert handler.get_prev_sampled_outputs() is None
assert handler.receive(step([0, 1]))
assert handler.get_prev_sampled_outputs() is None
assert not handler.receive(step([2, 3], prompts=1))
assert not sent
send([7, 8])
first = handler.get_prev_sampled_outputs()
assert not sent and first["sampled_tokens"].tolist() == [[7], [8]]
assert first["num_sampled"].tolist() == [1, 1] and first["num_rejected"].tolist() == [0, 0]
# In a step of prompts alone nobody's token is needed, and none is sent.
assert not handler.receive(step([1], prompts=1))
# One whose request was meanwhile given to another is skipped; all: still received.
handler.on_req_idx_freed(3)
send([4, 9])
assert handler.get_prev_sampled_outputs() is None and not sent
assert handler.get_prev_sampled_outputs() is None
"""
    )
    assert result.returncode == 0, result.stderr


def test_worker_start_is_needed(python: Any) -> None:
    from vllm.v1.executor import multiproc_executor

    executor = inspect.getsource(multiproc_executor.MultiprocExecutor._init_executor)
    assert executor.index("set_multiprocessing_worker_envs(") < executor.index("get_mp_context()")
    assert "WorkerProc.wait_for_ready(" in executor
    wait = inspect.getsource(multiproc_executor.WorkerProc.wait_for_ready)
    assert "due to an exception in a" in wait and ".rank}" not in wait
    result = python(
        """
import multiprocessing, os, signal, time
from types import SimpleNamespace
import vllm_anvil
from vllm.platforms import current_platform
from vllm.v1.executor import multiproc_executor
from vllm_anvil.plugin import start_method

assert type(current_platform).__name__ == "AnvilPlatform"
vllm_anvil.notice()
vllm_anvil.notice()
context = multiprocessing.get_context("fork")

def worker(rank, work):
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=work)
    process.start()
    writer.close()
    return SimpleNamespace(rank=rank, proc=process, ready_pipe=reader)

for work, words in (
    (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
    (lambda: os._exit(3), "exit status 3"),
):
    handles = [worker(0, lambda: time.sleep(600)), worker(1, work)]
    try:
        multiproc_executor.WorkerProc.wait_for_ready(handles)
    except RuntimeError as error:
        died = f"rank 1 (process {handles[1].proc.pid}) ended with {words}"
        assert str(error) == f"While the engine was starting, {died}.", error
    else:
        raise SystemExit("no error")
    handles[0].proc.join()
    assert handles[0].proc.exitcode == -signal.SIGKILL

chosen = []
start_method.choose = lambda: chosen.append(True)
multiproc_executor.set_multiprocessing_worker_envs(2)
assert chosen == [True]
"""
    )
    assert result.returncode == 0, result.stderr


def test_ray_environment_is_needed(python: Any) -> None:
    result = python(
        """
import os
from vllm.platforms import current_platform
from vllm.v1.executor import ray_executor_v2
from vllm_anvil import envs
from vllm_anvil.plugin.seams import ray_environment

def copied():
    return ray_executor_v2.get_driver_env_vars(ray_executor_v2.WORKER_SPECIFIC_ENV_VARS)

assert current_platform.device_control_env_var in envs.OF_A_HOST
assert copied()["ANVIL_VISIBLE_DEVICES"] == "1", "the engine leaves it out now"
ray_environment.apply()
assert not set(envs.OF_A_HOST) & set(copied()) and copied()["ANVIL_COMM"] == "gloo"
""",
        ANVIL_DEVICES="2",
        ANVIL_VISIBLE_DEVICES="1",
        ANVIL_DEVICE_MEMORY="1GiB",
        ANVIL_ISA="avx2",
        ANVIL_COMM="gloo",
    )
    assert result.returncode == 0, result.stderr


def test_ray_devices_is_needed(python: Any) -> None:
    """tests/e2e/test_ray.py runs it in processes that Ray has started."""
    from vllm.v1.executor.ray_executor_v2 import RayWorkerProc

    source = inspect.getsource(RayWorkerProc.get_node_and_physical_gpu_ids)
    assert "get_accelerator_ids()[device_key]" in source
    result = python(
        """
import ray
from types import SimpleNamespace
from ray._private import accelerators
assert "ANVIL" not in accelerators.get_all_accelerator_resource_names(), "Ray knows the device"

from vllm.platforms import current_platform
from vllm_anvil.plugin.seams import ray_devices
assert current_platform.device_type == "anvil"  # was constructed after ray was imported
first = ray.runtime_context.RuntimeContext.get_accelerator_ids
assert first.knows_anvil
ray_devices.apply()
assert ray.runtime_context.RuntimeContext.get_accelerator_ids is first

def ids_of(name, pattern):
    return [1] if name == "ANVIL" else []

worker = SimpleNamespace(
    check_connected=lambda: None, get_accelerator_ids_for_accelerator_resource=ids_of
)
ids = ray.runtime_context.RuntimeContext(worker).get_accelerator_ids()
assert ids["ANVIL"] == ["0"] and ids["GPU"] == [], ids
""",
        ANVIL_DEVICES="2",
        ANVIL_VISIBLE_DEVICES="1,0",
    )
    assert result.returncode == 0, result.stderr


def test_pending_calls_is_needed(python: Any) -> None:
    from vllm.v1.engine import core_client

    for call in (
        core_client.SyncMPClient.call_utility,
        core_client.AsyncMPClient._call_utility_async,
    ):
        assert "self.utility_results[call_id] = future" in inspect.getsource(call)
    assert "utility_results" not in inspect.getsource(core_client.MPClient.shutdown)
    result = python(
        """
import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from vllm.v1.engine.core_client import MPClient
from vllm.v1.engine.exceptions import EngineDeadError
from vllm_anvil.plugin.seams import pending_calls

pending_calls.apply()
pending_calls.apply()

async def main():
    resources = SimpleNamespace(engine_dead=False, engine_manager=None)
    answered, waiting = Future(), Future()
    awaited = asyncio.get_running_loop().create_future()
    answered.set_result(1)
    calls = {1: answered, 2: waiting, 3: awaited}
    MPClient.start_engine_core_monitor(SimpleNamespace(resources=resources, utility_results=calls))
    assert not waiting.done() and not awaited.done()
    resources.engine_dead = True
    for call in (asyncio.wrap_future(waiting), awaited):
        try:
            await asyncio.wait_for(call, 60)
        except EngineDeadError:
            continue
        raise SystemExit("no error")
    assert answered.result() == 1

asyncio.run(main())
"""
    )
    assert result.returncode == 0, result.stderr
