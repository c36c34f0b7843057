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
    """A server that is ready."""

    root: str
    log: Path

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


@contextlib.contextmanager
def serve(
    folder: Path, model: Path, options: list[str], environment: Mapping[str, str]
) -> Iterator[Server]:
    """A server on a port of its own, named "model"; fails with its log where it does not start."""
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
    server = Server(f"http://127.0.0.1:{port}", log)
    try:
        _wait_until_ready(server, process)
        yield server
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes]) -> None:
    for _ in range(START_LIMIT_S * 2):
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError):
            server.ask("/health")
            return
        time.sleep(0.5)
    raise RuntimeError(f"the server did not become ready:\n{server.log.read_text()[-8000:]}")
