# SPDX-License-Identifier: Apache-2.0
"""Seam: graphs of steps that communicate.

What vLLM does
    `vllm.distributed.parallel_state.GroupCoordinator.graph_capture`, which every capture enters for
    the groups of several ranks, asserts that the group's communicator is CUDA's or XPU's.
What is changed
    For a group whose communicator is AnvilCommunicator it does what it does for a group without
    one: it makes the capture's stream current, behind what the stream before it has queued. The
    communicator's collectives are commands of a stream like any other.
Checked against
    vllm 0.32.
Unnecessary when
    The engine takes a communicator of a platform of its own.
Test that fails then
    tests/plugin/test_rank_seams.py::test_group_capture_is_needed
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def apply() -> None:
    from vllm.distributed.parallel_state import GraphCaptureContext, GroupCoordinator
    from vllm.platforms import current_platform
    from vllm.utils.import_utils import resolve_obj_by_qualname

    communicator = resolve_obj_by_qualname(current_platform.get_device_communicator_cls())
    original = GroupCoordinator.graph_capture
    if getattr(original, "is_anvils", False):
        return

    @contextmanager
    def graph_capture(self: Any, graph_capture_context: Any = None) -> Iterator[Any]:
        if not isinstance(self.device_communicator, communicator):
            with original(self, graph_capture_context) as context:
                yield context
            return
        context = graph_capture_context or GraphCaptureContext(torch.cuda.Stream())
        current = torch.cuda.current_stream()
        if current != context.stream:
            context.stream.wait_stream(current)
        with torch.cuda.stream(context.stream):
            yield context

    graph_capture.is_anvils = True  # type: ignore[attr-defined]
    GroupCoordinator.graph_capture = graph_capture
