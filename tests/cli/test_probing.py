# SPDX-License-Identifier: Apache-2.0
"""Probes in children: answers, crashes, silence, and what they leave behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from vllm_anvil.cli import probes, probing

CHILD = """
import json, os, signal, subprocess, sys, time
name, file = sys.argv[1:]
if name == "answer":
    print("noise on standard output")
    json.dump({"ok": True}, open(file, "w"))
elif name == "exit":
    sys.exit("the last words")
elif name == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
elif name == "half":
    open(file, "w").write('{"ok"')
elif name == "orphan":
    orphan = subprocess.Popen(["sleep", "600"])
    json.dump({"pid": orphan.pid}, open(file, "w"))
else:
    orphan = subprocess.Popen(["sleep", "600"])
    open(os.environ["ORPHAN_FILE"], "w").write(str(orphan.pid))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts CHILD in the place of the probes' module; returns where it notes its orphan."""
    interpreter = tmp_path / "python"
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    # The command is: python -P -m vllm_anvil.cli.probes NAME FILE
    interpreter.write_text(f'#!/bin/sh\nshift 3\nexec {probing.sys.executable} {script} "$@"\n')
    interpreter.chmod(0o755)
    monkeypatch.setattr(probing.sys, "executable", str(interpreter))
    monkeypatch.setenv("ORPHAN_FILE", str(tmp_path / "orphan"))
    return tmp_path / "orphan"


def ended(pid: int) -> bool:
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.usefixtures("child")
def test_answers_and_failures() -> None:
    found = probing.ask(["answer", "exit", "crash", "half"], timeout_s=60)
    assert list(found) == ["answer", "exit", "crash", "half"]
    assert found["answer"] == {"ok": True}
    assert found["exit"] == {"error": "the probe ended with exit status 1: the last words"}
    assert found["crash"] == {"error": "the probe ended with signal SIGSEGV"}
    assert found["half"] == {"error": "the probe ended with exit status 0"}


def test_silence_is_ended_with_all_it_started(child: Path) -> None:
    found = probing.ask(["silent"], timeout_s=2)
    assert found["silent"] == {"error": "no answer within 2 s"}
    assert ended(int(child.read_text()))


@pytest.mark.usefixtures("child")
def test_orphans_of_a_probe_that_answered_are_ended() -> None:
    found = probing.ask(["orphan"], timeout_s=60)
    assert ended(found["orphan"]["pid"])


def test_no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing.sys, "executable", "/nonexistent/python")
    assert "could not be started" in probing.ask(["answer"], timeout_s=5)["answer"]["error"]


def test_child_side_records_every_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer() -> dict[str, object]:
        return {"fine": 1}

    def fail() -> dict[str, object]:
        raise ValueError("a reason")

    def leave() -> dict[str, object]:
        raise SystemExit("ANVIL_STRICT says no")

    monkeypatch.setattr(probes, "PROBES", {"answer": answer, "fail": fail, "leave": leave})
    texts = []
    for name in probes.PROBES:
        probes.main(name, str(tmp_path / name))
        texts.append((tmp_path / name).read_text())
    assert texts == [
        '{"fine": 1}',
        '{"error": "ValueError: a reason"}',
        '{"error": "ANVIL_STRICT says no"}',
    ]


def test_probe_temporary_files_are_removed(child: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = child.parent / "temporary"
    folder.mkdir()
    monkeypatch.setattr(probing.tempfile, "tempdir", str(folder))
    probing.ask(["answer", "silent"], timeout_s=2)
    assert os.listdir(folder) == []
