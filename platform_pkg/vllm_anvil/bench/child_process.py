# SPDX-License-Identifier: Apache-2.0
"""Processes that may die, hang, or leave others behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

# Lines of a failed process's output that are shown.
TAIL_LINES = 15
POLL_S = 0.2


class ChildFailed(Exception):
    """A process did not do what it was started for; the message says how, with its last words."""


class Child:
    """A process in a session of its own, with its output in a file. Used as a context manager:
    nothing of the session is left on leaving.

    Args:
        what: names it in messages: "the anvil run 2 of 3".
        environment: all of its variables.
        log: where its output goes.
    """

    def __init__(
        self, what: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self._what, self._log = what, log
        self.doing = ""
        with log.open("wb") as output:
            try:
                self._process = subprocess.Popen(
                    list(command),
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise ChildFailed(f"{what} could not be started: {error}") from None

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_session()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait(
        self,
        timeout_s: float,
        look: Callable[[], None] = lambda: None,
        *,
        each_step: bool = False,
    ) -> None:
        """Waits until it has ended, calling `look` meanwhile.

        Raises ChildFailed where it takes longer, or ends with another status than 0. `each_step`:
        so long for each thing that `doing` says, which `look` updates, instead of for all of them.
        """
        deadline, doing = time.monotonic() + timeout_s, self.doing
        while self.alive:
            if each_step and doing != self.doing:
                deadline, doing = time.monotonic() + timeout_s, self.doing
            if time.monotonic() > deadline:
                how = "got no further" if each_step else "did not end"
                raise self.failure(f"{how} within {timeout_s:g} s (--timeout)")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(POLL_S)
            look()
        if self._process.returncode != 0:
            raise self.failure(f"ended with {_status(self._process.returncode)}")

    def stop(self, patience_s: float) -> None:
        """Asks it to end. Raises ChildFailed where it does not, or something of it stays."""
        if not self.alive:
            raise self.failure(f"ended by itself, with {_status(self._process.returncode)}")
        self._process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + patience_s
        while self.alive or processes_of(self._process.pid):
            if time.monotonic() > deadline:
                raise self.failure(f"did not end within {patience_s:g} s of SIGTERM")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(POLL_S)
            time.sleep(0 if self.alive else POLL_S)

    def failure(self, happened: str) -> ChildFailed:
        """The exception, with what it was doing and the end of its output."""
        doing = f" while {self.doing}" if self.doing else ""
        text = self._log.read_text(encoding="utf-8", errors="replace")
        lines = [line.rstrip() for line in text.splitlines() if line.strip()][-TAIL_LINES:]
        words = "\n  ".join(["It ended its output with:", *lines]) if lines else "It said nothing."
        return ChildFailed(f"{self._what} {happened}{doing}. {words}")

    def _end_session(self) -> None:
        session = self._process.pid
        while True:
            left = processes_of(session)
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.01)
        self._process.wait()


def processes_of(session: int) -> list[int]:
    """Processes of a session that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(stat.parent.name))
    return found


def _status(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-status).name}"
    return f"signal {-status}"
