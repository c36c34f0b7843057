# SPDX-License-Identifier: Apache-2.0
"""Runs probes in child processes, with a time limit that holds whatever they start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def ask(names: Iterable[str], timeout_s: float) -> dict[str, dict[str, Any]]:
    """The answers of the named probes, two at a time; one that gives none has the key "error"."""
    names = list(names)
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(names, pool.map(lambda n: _ask_one(n, timeout_s), names), strict=True))


def _ask_one(name: str, timeout_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="vllm-anvil-doctor-") as folder:
        answer, log = Path(folder, "answer.json"), Path(folder, "log")
        # -P keeps the current directory out of the module path, as the engine's own command does.
        command = [sys.executable, "-P", "-m", "vllm_anvil.cli.probes", name, str(answer)]
        with log.open("wb") as stream:
            try:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    start_new_session=True,
                )
            except OSError as error:
                return {"error": f"the probe could not be started: {error}"}
            try:
                status = child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _end_session(child)
        if status is None:
            return {"error": f"no answer within {timeout_s:g} s"}
        try:
            result = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {"error": f"the probe ended with {_status(status)}{_last_line(log)}"}
        return result


def _end_session(child: subprocess.Popen[bytes]) -> None:
    """Ends the child and whatever it left behind in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _status(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last}" if last else ""
