# SPDX-License-Identifier: Apache-2.0
"""Seam: PyTorch's own threads, which ops without a native kernel run on.

What vLLM does
    `vllm.v1.worker.gpu_worker.Worker.load_model` ends with
    `vllm.utils.torch_utils.set_torch_threads_for_runtime`, which leaves PyTorch one thread: on a
    GPU worker, CPU ops are not worth more. Here they are the model.
What is changed
    The name in `gpu_worker` means a function that gives PyTorch as many threads as the current
    device has cores. An OMP_NUM_THREADS that the user set is respected, as vLLM does; one that
    vLLM chose for its workers is not the user's. The name in `multiproc_executor` is left alone:
    that process only schedules.
Checked against
    vllm 0.32.
Unnecessary when
    The engine asks the platform how many threads a worker needs, or no op of a step runs on
    PyTorch's threads.
Test that fails then
    tests/plugin/test_seams.py::test_torch_threads_is_needed
"""

from __future__ import annotations

import os

import torch
from vllm.logger import init_logger

import vllm_anvil.device as anvil

logger = init_logger("vllm.plugins.anvil.worker")


def set_torch_threads_for_device() -> None:
    """One PyTorch thread for each core of the current device."""
    from vllm.utils.torch_utils import OMP_NUM_THREADS_SET_BY_VLLM

    chosen_by_user = (
        os.environ.get("OMP_NUM_THREADS") and os.environ.get(OMP_NUM_THREADS_SET_BY_VLLM) != "1"
    )
    if chosen_by_user:
        return
    cores = len(anvil.get_device_properties(anvil.current_device()).cores)
    if torch.get_num_threads() != cores:
        torch.set_num_threads(cores)
    logger.info_once("Threads that PyTorch uses: %d, one for each core of the device.", cores)


def apply() -> None:
    from vllm.v1.worker import gpu_worker

    gpu_worker.set_torch_threads_for_runtime = set_torch_threads_for_device
