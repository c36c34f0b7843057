# SPDX-License-Identifier: Apache-2.0
"""Hosts of a Ray cluster, on one machine: each with an address of the loopback network.

A further host has a process namespace and a /dev/shm of its own, so that its ranks can share no
memory with another's, as on a network.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vllm_anvil.plugin.ray_cluster import start_commands

RAY = str(Path(sys.executable).with_name("ray"))
# As small as Ray allows: nothing large goes through its store.
SMALL = ("--object-store-memory=78643200", "--num-cpus=1", "--num-gpus=0", "--disable-usage-stats")
APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
OWN_MEMORY = 'mount -t tmpfs -o size=1g tmpfs /dev/shm && exec "$@"'


def refused() -> str | None:
    """Why no host can be set apart here, or None."""
    done = subprocess.run(
        [*APART, "sh", "-c", OWN_MEMORY, "sh", "true"], capture_output=True, text=True
    )
    return None if done.returncode == 0 else f"namespaces are not permitted: {done.stderr.strip()}"


class RayHost:
    """`ray start` and what it starts, until `stop`."""

    def __init__(self, address: str, apart: bool, *options: str, **environment: str) -> None:
        self.address = address
        command = [RAY, "start", "--block", f"--node-ip-address={address}", *SMALL, *options]
        if apart:
            command = [*APART, "sh", "-c", OWN_MEMORY, "sh", *command]
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("ANVIL_", "RAY_"))}
        self.process = subprocess.Popen(
            command,
            env={**clean, **environment, "VLLM_HOST_IP": address},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            said.append(line)
            if "Ray runtime started" in line:
                return
        pytest.fail(f"Ray did not start on {address}:\n{''.join(said)}", pytrace=False)

    def descendants(self) -> dict[int, str]:
        """Processes that this one or its children started, with what they say they are."""
        parents, names = {}, {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    names[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
                except OSError:
                    continue
                parents[int(entry.name)] = int(fields[1])
        found: dict[int, str] = {}
        for pid, name in names.items():
            ancestor: int | None = pid
            while ancestor is not None and ancestor != self.process.pid:
                ancestor = parents.get(ancestor)
            if ancestor is not None and pid != ancestor:
                found[pid] = name
        return found

    def ranks(self) -> list[int]:
        """Processes of engines' ranks on this host."""
        return [pid for pid, name in self.descendants().items() if "RayWorkerProc" in name]

    def wait_without_ranks(self) -> None:
        """Until no rank is left; the test's own timeout ends it otherwise."""
        while self.ranks():
            time.sleep(0.1)

    def stop(self) -> None:
        """At once: nothing of a test's cluster is worth an orderly end, which takes seconds."""
        for pid in [self.process.pid, *self.descendants()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def start_first(
    folder: Path, devices: int, numbered: bool = True, **environment: str
) -> tuple[RayHost, dict[str, str]]:
    """The first host of a cluster, by the command that `vllm-anvil doctor` gives or, not
    `numbered`, by less than that, and the environment of programs that use the cluster there."""
    _, _, *options = shlex.split(start_commands(devices)["first host"])
    if not numbered:
        options = [option for option in options if not option.startswith("--system-config")]
    port = free_port()
    host = RayHost(
        "127.0.0.2",
        False,
        *options,
        f"--port={port}",
        "--include-dashboard=false",
        f"--temp-dir={folder}",
        **environment,
    )
    return host, {"RAY_ADDRESS": f"127.0.0.2:{port}", "VLLM_HOST_IP": "127.0.0.2"}
