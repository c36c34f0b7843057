# SPDX-License-Identifier: Apache-2.0
"""Processes of an engine end when their parent has died; other processes of a program do not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Starts children, says which, and waits to be killed. A child writes its number when it is told to
# end, and when it is done.
PROGRAM = """
import json, multiprocessing, os, signal, sys, time
from vllm_anvil.plugin import orphans

orphans.watch()  # a spawned child runs this while it imports

def child(folder, name, stubborn):
    def told(*_):
        open(os.path.join(folder, name + ".told"), "w").close()
        if not stubborn:
            raise SystemExit(0)
    signal.signal(signal.SIGTERM, told)
    open(os.path.join(folder, name + ".ready"), "w").close()
    for _ in range(600):
        time.sleep(0.1)

if __name__ == "__main__":
    folder, method = sys.argv[1:]
    context = multiprocessing.get_context(method)
    children = {}
    for name in ("EngineCore", "EngineCore_DP1", "VllmWorker-0", "mine"):
        stubborn = name == "EngineCore_DP1"
        one = context.Process(target=child, args=(folder, name, stubborn), name=name)
        one.start()
        children[name] = one.pid
    while sum(name.endswith(".ready") for name in os.listdir(folder)) < len(children):
        time.sleep(0.05)
    print(json.dumps(children), flush=True)
    time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_of_a_killed_parent(method: str, tmp_path: Path) -> None:
    program, folder = tmp_path / "program.py", tmp_path / "said"
    program.write_text(PROGRAM)
    folder.mkdir()
    parent = subprocess.Popen(
        [sys.executable, str(program), str(folder), method],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert parent.stdout is not None
    children: dict[str, int] = json.loads(parent.stdout.readline())
    try:
        parent.kill()
        parent.wait()
        mine = children.pop("mine")
        for _ in range(600):
            if not any(map(alive, children.values())):
                break
            time.sleep(0.1)
        assert [name for name, pid in children.items() if alive(pid)] == []
        assert {file.stem for file in folder.glob("*.told")} == set(children)
        assert alive(mine)
    finally:
        for pid in [*children.values(), mine]:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
