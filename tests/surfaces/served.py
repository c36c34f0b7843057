# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` for a test: started, waited for, asked, and ended with all that it has started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_LIMIT_S = 400


@dataclass
class Server:
    """A server, which `ask` needs to be ready."""

    root: str
    log: Path
    process: subprocess.Popen[bytes]

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        """(status, answer) of GET, or of POST with `body` as JSON."""
        request = urllib.request.Request(
            self.root + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=120) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def wait_until_ready(self) -> None:
        """Raises RuntimeError, with its log, where it ends before or never is."""
        for _ in range(START_LIMIT_S * 2):
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                self.ask("/health")
                return
            time.sleep(0.5)
        raise RuntimeError(f"the server did not become ready:\n{self.log.read_text()[-8000:]}")

    def left(self) -> list[str]:
        """What runs of the processes that it has started, itself among them, by name."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                name, _, rest = stat.read_text().partition(" (")[2].rpartition(") ")
                state, _, _, session = rest.split()[:4]
                if int(session) == self.process.pid and state != "Z":
                    found.append(name)
        return found


@contextlib.contextmanager
def launched(
    folder: Path, model: Path, options: list[str], environment: Mapping[str, str]
) -> Iterator[Server]:
    """A server on a port of its own, named "model", that has been started; killed at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "server.log"
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "model"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *options],
            env=dict(environment),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Server(f"http://127.0.0.1:{port}", log, process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def serve(
    folder: Path, model: Path, options: list[str], environment: Mapping[str, str]
) -> Iterator[Server]:
    """The same, ready; fails with its log where it does not start, and ends it in order."""
    with launched(folder, model, options, environment) as server:
        server.wait_until_ready()
        yield server
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
