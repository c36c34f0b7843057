# SPDX-License-Identifier: Apache-2.0
"""The engine's process is forked from a process that a fork leaves whole, and spawned otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

# Each condition on top of those before it that do not go away.
PROGRAM = """
import os, threading
from vllm.platforms import current_platform
import torch
from vllm.utils.system_utils import get_mp_context
from vllm_anvil.plugin import orphans, start_method

assert type(current_platform).__name__ == "AnvilPlatform"

def show(name, **conditions):
    start_method.choose(**conditions)
    reason = start_method._why_not_fork(conditions.get("with_ray", False))
    print(name, get_mp_context().get_start_method(), reason, sep="|")

show("nothing")
assert os.fork() or os._exit(0 if torch.ones(2, device="anvil").sum() == 2 else 1)
assert os.wait()[1] == 0, "a forked child uses the device"
show("ray", with_ray=True)
end = threading.Event()
thread = threading.Thread(target=end.wait)
thread.start()
show("thread")
end.set(), thread.join()
show("no thread")
watcher = threading.Thread(target=threading.Event().wait, name=orphans.THREAD, daemon=True)
watcher.start()
show("watcher")
torch.ones(1 << 20).add(1).sum()
show("openmp")
torch.ones(1, device="anvil")
show("device")
"""


def outcomes(program: str, **environment: str) -> tuple[dict[str, tuple[str, str]], str]:
    clean = {name: v for name, v in os.environ.items() if name != "VLLM_WORKER_MULTIPROC_METHOD"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, "OMP_NUM_THREADS": "2", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split("|") for line in done.stdout.splitlines() if line.count("|") == 2]
    return {name: (method, reason) for name, method, reason in lines}, done.stdout + done.stderr


def test_forked_where_that_is_safe() -> None:
    found, output = outcomes(PROGRAM)
    assert found["nothing"] == found["no thread"] == found["watcher"] == ("fork", "None")
    spawned = {
        "ray": "Ray's threads",
        "thread": "other Python threads",
        "openmp": "OpenMP threads",
        "device": "uses the anvil device",
    }
    for name, reason in spawned.items():
        assert found[name][0] == "spawn" and reason in found[name][1], name
    assert "overridden" not in output


def test_what_the_user_asks_for() -> None:
    found, output = outcomes(PROGRAM, VLLM_WORKER_MULTIPROC_METHOD="spawn")
    assert {method for method, _ in found.values()} == {"spawn"} and "overridden" not in output
    found, output = outcomes(PROGRAM, VLLM_WORKER_MULTIPROC_METHOD="fork")
    assert found["nothing"][0] == "fork" and found["device"][0] == "spawn"
    assert "fork is overridden with spawn: this process uses the anvil device" in output
