# SPDX-License-Identifier: Apache-2.0
"""Seam: streams, events and graphs that the engine's model runners take from `torch.cuda`.

What vLLM does
    `vllm.v1.worker.gpu_model_runner` (and what it calls: asynchronous outputs, draft tokens,
    pooler outputs) names `torch.cuda.Stream`, `Event`, `current_stream`, `default_stream`,
    `stream` and `set_stream` for whatever device it runs on, and
    `vllm.v1.worker.gpu.cudagraph_utils` captures decode steps with `torch.cuda.CUDAGraph` and
    `graph`. vLLM's own XPU runner rebinds the same names.
What is changed
    Those names mean the device's in this process, once a worker of it runs there. Each is a
    function or class of its own, not `torch.anvil`'s object, since TorchDynamo refuses two names
    for one handler. `torch.cuda.is_available` and everything else stays.
Checked against
    vllm 0.32.
Unnecessary when
    The runner uses `torch.accelerator`'s or `torch`'s own streams and events.
Test that fails then
    tests/plugin/test_seams.py::test_torch_cuda_names_is_needed
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

import vllm_anvil.device as anvil

NAMES = ("Stream", "Event", "CUDAGraph", "graph", "current_stream", "default_stream", "stream")


class Stream(anvil.Stream):
    """A stream of the device, under the name that the engine uses."""


class Event(anvil.Event):
    """An event of the device, under the name that the engine uses."""


class CUDAGraph(anvil.Graph):
    """A recorded graph of the device, under the name that the engine uses."""


class graph(anvil.graph):
    """Captures into a graph of the device, under the name that the engine uses."""


def current_stream(device: torch.types.Device = None) -> Any:
    return anvil.current_stream(device)


def default_stream(device: torch.types.Device = None) -> Any:
    return anvil.default_stream(device)


def stream(stream: Any) -> AbstractContextManager[Any]:
    return anvil.stream(stream)


def apply() -> None:
    from vllm.utils import torch_utils

    for name in NAMES:
        setattr(torch.cuda, name, globals()[name])
    # `torch.cuda.set_stream` already is vLLM's own wrapper, which remembers the stream for
    # `vllm.utils.torch_utils.current_stream`; what it wraps becomes the device's.
    torch_utils.prev_set_stream = anvil.set_stream
