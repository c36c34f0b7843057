# SPDX-License-Identifier: Apache-2.0
"""Processes that die, hang, or leave others behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from vllm_anvil.bench.child_process import Child, ChildFailed, processes_of

# Starts another process, says its number, and stays.
PARENT = (
    "import subprocess, sys, time, os\n"
    "other = subprocess.Popen(['sleep', '600'])\n"
    "print(os.getpid(), flush=True)\n"
)


def child(tmp_path: Path, code: str) -> Child:
    return Child("the run", [sys.executable, "-c", code], os.environ, tmp_path / "log")


def session(tmp_path: Path) -> int:
    """The number that the process has said."""
    for _ in range(500):
        words = (tmp_path / "log").read_text().split()
        if words:
            return int(words[0])
        time.sleep(0.02)
    raise AssertionError("it said nothing")


def test_success_and_what_is_looked_at_meanwhile(tmp_path: Path) -> None:
    looks: list[int] = []
    with child(tmp_path, "import time; time.sleep(0.5)") as one:
        one.wait(30, lambda: looks.append(1))
    assert looks


def test_a_limit_for_each_step(tmp_path: Path) -> None:
    """Steps that together take longer than the limit are waited for; one that does is not."""
    with child(tmp_path, "import time; time.sleep(3)") as one:

        def look(started: float = time.monotonic()) -> None:
            one.doing = f"step {int((time.monotonic() - started) / 0.5)}"

        one.wait(1.5, look, each_step=True)
    with (
        pytest.raises(ChildFailed, match=r"got no further within 1 s \(--timeout\) while idle"),
        child(tmp_path, "import time; time.sleep(60)") as one,
    ):
        one.doing = "idle"
        one.wait(1, each_step=True)


def test_death_with_its_last_words(tmp_path: Path) -> None:
    code = "import sys\nfor n in range(40): print('line', n)\nsys.exit(3)"
    with pytest.raises(ChildFailed) as raised, child(tmp_path, code) as one:
        one.doing = "measuring decode-8"
        one.wait(30)
    message = str(raised.value)
    assert message.startswith(
        "the run ended with exit status 3 while measuring decode-8. It ended its output with:\n"
    )
    assert "line 39" in message and "line 25" in message and "line 24" not in message


def test_death_by_a_signal_without_a_word(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    with (
        pytest.raises(ChildFailed, match=r"the run ended with signal SIGSEGV\. It said nothing\."),
        child(tmp_path, code) as one,
    ):
        one.wait(30)


def test_a_hanging_process_and_what_it_started_are_ended(tmp_path: Path) -> None:
    with (
        pytest.raises(ChildFailed, match=r"the run did not end within 1 s \(--timeout\)"),
        child(tmp_path, PARENT + "time.sleep(600)") as one,
    ):
        number = session(tmp_path)
        assert len(processes_of(number)) == 2
        one.wait(1)
    assert processes_of(number) == []


def test_what_a_process_leaves_behind_is_ended(tmp_path: Path) -> None:
    with child(tmp_path, PARENT) as one:
        number = session(tmp_path)
        one.wait(30)
        assert len(processes_of(number)) == 1
    assert processes_of(number) == []


def test_an_exception_ends_the_process(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), child(tmp_path, PARENT + "time.sleep(600)"):
        number = session(tmp_path)
        raise KeyboardInterrupt
    assert processes_of(number) == []


def test_stopping(tmp_path: Path) -> None:
    with child(tmp_path, "import time; print(1, flush=True); time.sleep(600)") as one:
        session(tmp_path)
        one.stop(30)
    deaf = (
        "import signal, time; signal.signal(15, signal.SIG_IGN)\n"
        "print(1, flush=True); time.sleep(600)"
    )
    with (
        pytest.raises(ChildFailed, match="the run did not end within 1 s of SIGTERM"),
        child(tmp_path, deaf) as one,
    ):
        session(tmp_path)
        one.stop(1)
    with (
        pytest.raises(ChildFailed, match="the run ended by itself, with exit status 0"),
        child(tmp_path, "") as one,
    ):
        one.wait(30)
        one.stop(1)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match="the run could not be started: .*No such file"):
        Child("the run", ["/nowhere/python"], os.environ, tmp_path / "log")
