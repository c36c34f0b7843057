# SPDX-License-Identifier: Apache-2.0
"""`vllm_anvil.device.trace`: what the device ran, and when."""

from __future__ import annotations

import time

import torch

import vllm_anvil.device as anvil
from vllm_anvil.device.trace import trace


def ones(*sizes: int) -> torch.Tensor:
    """A tensor whose making is not in a trace any more."""
    tensor = torch.ones(*sizes, device="anvil")
    torch.accelerator.synchronize()
    return tensor


def test_operators_and_their_times() -> None:
    x = ones(64, 64)
    before = time.perf_counter_ns()
    with trace() as spans:
        (x @ x).add_(1.0)
        anvil._sleep(2)
        torch.accelerator.synchronize()
    after = time.perf_counter_ns()
    torch.add(x, x)
    torch.accelerator.synchronize()
    names = [span.name for span in spans]
    assert [name for name in names if name != "free"] == ["aten::mm", "aten::add_.Tensor", "sleep"]
    assert all(before <= s.begin_ns <= s.end_ns <= after and s.depth == 0 for s in spans)
    sleep = spans[names.index("sleep")]
    assert sleep.end_ns - sleep.begin_ns >= 2_000_000 and sleep.device == 0
    assert spans.dropped == 0


def test_nodes_of_a_graph() -> None:
    x = ones(8)
    graph = anvil.Graph()
    with anvil.graph(graph):
        y = x * 2 + 1
    with trace() as spans:
        graph.replay()
        torch.accelerator.synchronize()
    assert [span.depth for span in spans] == [1, 1, 0]
    assert spans[-1].name == "graph" and all("::" in span.name for span in spans[:-1])
    assert y.tolist() == [3.0] * 8


def test_no_more_than_there_is_room_for() -> None:
    x = ones(8)
    with trace(capacity=3) as spans:
        for _ in range(10):
            x.add_(1.0)
        torch.accelerator.synchronize()
    assert len(spans) == 3 and spans.dropped == 7
