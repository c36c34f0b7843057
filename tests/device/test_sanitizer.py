# SPDX-License-Identifier: Apache-2.0
"""The stream sanitizer in Python: each kind of mistake is reported with both lines, and programs
without one are not.

Each program runs in a process of its own with ANVIL_SANITIZE=1; lines that a report has to name are
marked with comments.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import torch
import vllm_anvil.device
side = torch.anvil.Stream()
x = torch.ones(1000, device="anvil")
host = torch.ones(1000).pin_memory()
torch.anvil.synchronize()
"""

TAIL = """
torch.anvil.synchronize()
print("result")
print("\\n\\n".join(torch.anvil.sanitizer.reports()))
"""

# kind of report, program
MISTAKES = {
    "write then read": (
        "race: memory is used on two streams without an order",
        """
x.add_(1)  # first
with torch.anvil.stream(side):
    y = x * 2  # second
""",
    ),
    "read then write": (
        "race: memory is used on two streams without an order",
        """
y = x * 2  # first
with torch.anvil.stream(side):
    x.add_(1)  # second
""",
    ),
    "native op": (
        "race: memory is used on two streams without an order",
        """
slots = torch.tensor([0, 1], device="anvil")
key = torch.ones(2, 1, 8, device="anvil")
cache = torch.zeros(2, 4, 4, 1, 8, device="anvil")
torch.anvil.synchronize()
torch.ops.anvil.write_kv_cache(key, key, cache[0], cache[1], slots)  # first
with torch.anvil.stream(side):
    total = cache[0].sum()  # second
""",
    ),
    "copy to the host": (
        "race: memory is used on two streams without an order",
        """
x.mul_(2)  # first
with torch.anvil.stream(side):
    host.copy_(x, non_blocking=True)  # second
""",
    ),
    "value on the host": (
        "race: memory is used on two streams without an order",
        """
x.mul_(2)  # first
with torch.anvil.stream(side):
    values = x.cpu()  # second
""",
    ),
    "shape that data decides": (
        "race: memory is used on two streams without an order",
        """
x.mul_(2)  # first
with torch.anvil.stream(side):
    where = x.nonzero()  # second
""",
    ),
    "memory handed out again": (
        "use before allocation: memory of one stream is used on another without an order",
        """
x.add_(1)
del x
y = torch.empty(1000, device="anvil")  # first
with torch.anvil.stream(side):
    y.fill_(3)  # second
""",
    ),
    "free across streams": (
        "memory freed while another stream may still use it",
        """
graph = torch.anvil.Graph()
with torch.anvil.graph(graph):
    y = x + 1
with torch.anvil.stream(side):
    graph.replay()  # first
del x  # second
""",
    ),
    "pinned memory": (
        "pinned memory changed while a command that reads it is queued",
        """
torch.anvil._sleep(100)
x.copy_(host, non_blocking=True)  # first
host[3] = 7  # second
""",
    ),
    "pinned memory through numpy": (
        "pinned memory changed while a command that reads it is queued",
        """
array = host.numpy()
torch.anvil._sleep(100)
x.copy_(host, non_blocking=True)  # first
array[:] = 7  # second
""",
    ),
    "stale graph": (
        "a graph uses memory that has been freed since its capture",
        """
graph = torch.anvil.Graph()
with torch.anvil.graph(graph):
    y = x + 1  # first
del x  # second
try:
    graph.replay()
except RuntimeError as error:
    assert "freed" in str(error)
else:
    raise AssertionError("a stale graph was replayed")
""",
    ),
}

CLEAN = {
    "events": """
x.add_(1)
side.wait_stream(torch.anvil.current_stream())
with torch.anvil.stream(side):
    y = x * 2
    host.copy_(y, non_blocking=True)
    done = side.record_event()
done.synchronize()
host.add_(1)
x.copy_(host, non_blocking=True)
torch.anvil.synchronize()
host[0] = 1
""",
    "record_stream": """
side.wait_stream(torch.anvil.current_stream())
with torch.anvil.stream(side):
    y = x * 2
    x.record_stream(side)
del x
junk = [torch.full((1000,), 2.0, device="anvil") for _ in range(20)]
""",
    "graphs": """
graph = torch.anvil.Graph()
x + 1
with torch.anvil.graph(graph):
    y = x + 1
    z = y * y
for step in range(5):
    x.fill_(step)
    graph.replay()
    assert z[0].item() == (step + 1) ** 2
""",
    "disjoint parts": """
with torch.anvil.stream(side):
    x[:500].add_(1)
x[500:].add_(1)
""",
    "autograd": """
w = torch.ones(1000, device="anvil", requires_grad=True)
((x * w).sum() ** 2).backward()
assert w.grad[0].item() == 2000
""",
}


def run(body: str, tmp_path: Path) -> tuple[str, dict[str, int]]:
    """The reports of a program, and the numbers of its marked lines."""
    text = HEAD + body + TAIL
    script = tmp_path / "program.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"ANVIL_SANITIZE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    marks = {
        found[1]: number
        for number, line in enumerate(text.splitlines(), start=1)
        if (found := re.search(r"# (first|second)$", line))
    }
    reports = done.stdout.split("result\n", 1)[1].strip()
    assert reports in done.stderr  # shown at once, too
    return reports, marks


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_reported_with_both_lines(name: str, tmp_path: Path) -> None:
    kind, body = MISTAKES[name]
    reports, marks = run(body, tmp_path)
    assert reports.count("anvil sanitizer: ") == 1, reports
    assert reports.startswith(f"anvil sanitizer: {kind}")
    for mark in ("first", "second"):
        assert f"program.py:{marks[mark]} in <module>" in reports, reports


@pytest.mark.parametrize("name", CLEAN)
def test_ordered_program_is_not_reported(name: str, tmp_path: Path) -> None:
    assert run(CLEAN[name], tmp_path)[0] == ""
