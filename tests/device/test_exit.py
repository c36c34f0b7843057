# SPDX-License-Identifier: Apache-2.0
"""Processes end cleanly whatever the device still holds; forked children are told what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAD = """
import sys
import torch
import vllm_anvil.device
x = torch.rand(500, 500, device="anvil")
y = x @ x
torch.anvil.synchronize()
"""

# What the process leaves behind when it ends.
LEFT = {
    "queued work": "torch.anvil._sleep(200)\nfor _ in range(50): x = x @ x",
    "a graph in flight": """
graph = torch.anvil.Graph()
with torch.anvil.graph(graph):
    y = x @ x
torch.anvil._sleep(200)
graph.replay()
sys.kept = [graph, y]
""",
    "a capture": """
graph = torch.anvil.Graph()
torch.anvil.stream(torch.anvil.Stream()).__enter__()
graph.capture_begin()
y = x + 1
""",
    "a wait between streams": """
event = torch.anvil.Event()
side = torch.anvil.Stream()
torch.anvil._sleep(200)
event.record()
side.wait_event(event)
with torch.anvil.stream(side):
    y = x + 1
""",
    "an error": """
table, index = torch.rand(4, 2, device="anvil"), torch.tensor([1], device="anvil")
torch.index_select(table, 0, index)
torch.index_select(table, 0, index + 9)
""",
    "a pinned copy": """
host = torch.empty(500, 500).pin_memory()
torch.anvil._sleep(200)
host.copy_(x, non_blocking=True)
""",
}


@pytest.mark.parametrize("left", LEFT)
def test_process_ends_cleanly(left: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + LEFT[left]], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_forked_child_is_told_to_spawn() -> None:
    body = """
import os
torch.anvil._sleep(50)
child = os.fork()
if child == 0:
    try:
        torch.ones(2, device="anvil")
    except RuntimeError as error:
        os._exit(0 if "spawn" in str(error) else 2)
    os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (x @ x).isfinite().all()
"""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + body], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
