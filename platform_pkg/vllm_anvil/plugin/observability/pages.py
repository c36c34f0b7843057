# SPDX-License-Identifier: Apache-2.0
"""A page of shared memory for each worker: written in every step, read by the engine's front end.

The engine hands its stat loggers what the scheduler knows, and nothing that a worker does. A page
is a memory file (memfd) of a few hundred bytes that its worker holds open: it is in no file system,
and gone with the worker, also where that is killed. It is found among the open files of this user's
processes by the engine's `instance_id`, which both sides have in their configuration. One on
another host is not seen: its figures are under /anvil/ only.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
from collections.abc import Iterator
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


def _prefix(config: VllmConfig, engine: int) -> str:
    return f"anvil-page-{config.instance_id}-{engine}-"


class PageWriter:
    """A worker's page.

    Args:
        description: what does not change, of JSON's types: its "rank" and "pid" are needed.
    """

    def __init__(self, config: VllmConfig, description: dict[str, Any]) -> None:
        text = json.dumps(description).encode()
        engine = config.parallel_config.data_parallel_index
        name = f"{_prefix(config, engine)}{description['rank']}"
        file = os.memfd_create(name, os.MFD_CLOEXEC)
        try:
            os.fchmod(file, 0o600)
            os.write(file, bytes(DESCRIPTION_AT) + text)
            self._map = mmap.mmap(file, 0)  # which keeps it open
        finally:
            os.close(file)

    def write(self, figures: Figures) -> None:
        # In one copy: `pack_into` makes everything 0 first, and a reader that saw that would count
        # all there is once more.
        self._map[: LAYOUT.size] = LAYOUT.pack(*vars(figures).values())

    def close(self) -> None:
        """Takes the page back: it is not found any more. May be called again."""
        # Readers keep the file open, so that closing it here would not do.
        self._map[DESCRIPTION_AT:] = bytes(len(self._map) - DESCRIPTION_AT)


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
    wanted = f"/memfd:{_prefix(config, engine)}"
    found: dict[int, PageReader] = {}
    for file in _open_files():
        # A process or a page may have just gone, and other users' files are not shown.
        with contextlib.suppress(OSError, ValueError):
            if not os.readlink(file).startswith(wanted):
                continue
            page = PageReader(file)
            # Readers have the pages of others open.
            if file.parts[2] == str(page.description["pid"]):
                found[page.description["rank"]] = page
    return [found[rank] for rank in sorted(found)]


def _open_files() -> Iterator[Path]:
    """Of all processes that may be looked at, as /proc/PID/fd/NUMBER."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for name in os.listdir(process / "fd"):
                yield process / "fd" / name
