# SPDX-License-Identifier: Apache-2.0
"""A page of shared memory for each worker: written in every step, read by the engine's front end.

The engine hands its stat loggers what the scheduler knows, and nothing that a worker does. A page
is a file of a few hundred bytes in /dev/shm, named by the engine's `instance_id`, which both sides
have in their configuration; a worker removes its page when it ends. One on another host is not
seen: its figures are under /anvil/ only.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# The figures, then what does not change, as JSON.
DESCRIPTION_AT = 512


@dataclass(frozen=True)
class Figures:
    """What a worker did since it was started, and what its device holds.

    Attributes:
        steps, tokens: forward passes of the engine, and the tokens in them.
        graph_replays: those of the passes that were replayed from a graph.
        op_fallbacks: calls of layers that the device's ops did not take.
        cpu_seconds: processor time of the worker's process.
        at_seconds: when that was read, by the monotonic clock of the host.
        memory_allocated, memory_reserved, memory_limit: bytes.
    """

    steps: float = 0
    tokens: float = 0
    graph_replays: float = 0
    op_fallbacks: float = 0
    cpu_seconds: float = 0
    at_seconds: float = 0
    memory_allocated: float = 0
    memory_reserved: float = 0
    memory_limit: float = 0


LAYOUT = struct.Struct(f"={len(fields(Figures))}d")
assert LAYOUT.size <= DESCRIPTION_AT


def _folder() -> Path:
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


def _prefix(config: VllmConfig, engine: int) -> str:
    return f"anvil-{os.getuid()}-{config.instance_id}-{engine}-"


class PageWriter:
    """A worker's page.

    Args:
        description: what does not change, of JSON's types: its "rank" and "pid" are needed.
    """

    def __init__(self, config: VllmConfig, description: dict[str, Any]) -> None:
        text = json.dumps(description).encode()
        engine = config.parallel_config.data_parallel_index
        self._path = _folder() / f"{_prefix(config, engine)}{description['rank']}"
        _remove_abandoned()
        # Complete before it has its name, and readable by this user alone.
        with tempfile.NamedTemporaryFile(dir=self._path.parent, delete=False) as file:
            file.write(bytes(DESCRIPTION_AT) + text)
            file.flush()
            self._map = mmap.mmap(file.fileno(), 0)
            os.replace(file.name, self._path)

    def write(self, figures: Figures) -> None:
        LAYOUT.pack_into(self._map, 0, *vars(figures).values())

    def close(self) -> None:
        """Removes the page. May be called again."""
        self._path.unlink(missing_ok=True)


class PageReader:
    """One worker's page, as it is at each `read`, also once the worker has ended."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.description: dict[str, Any] = json.loads(self._map[DESCRIPTION_AT:])

    def read(self) -> Figures:
        return Figures(*LAYOUT.unpack_from(self._map, 0))


def readers(config: VllmConfig, engine: int) -> list[PageReader]:
    """The pages of an engine's workers on this host, by rank."""
    found = []
    for path in _folder().glob(f"{_prefix(config, engine)}*"):
        with contextlib.suppress(OSError, ValueError):  # it has just gone
            found.append(PageReader(path))
    return sorted(found, key=lambda page: page.description["rank"])


def _remove_abandoned() -> None:
    """Removes pages of this user's workers that were killed."""
    for path in _folder().glob(f"anvil-{os.getuid()}-*"):
        with contextlib.suppress(OSError, ValueError):
            pid = PageReader(path).description["pid"]
            if not os.path.exists(f"/proc/{pid}"):
                path.unlink(missing_ok=True)
