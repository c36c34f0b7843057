# SPDX-License-Identifier: Apache-2.0
"""Starts the processes of a group."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

TIMEOUT_SECONDS = 300


@contextmanager
def started(
    program: Path,
    world_size: int,
    rendezvous: Path,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] = {},
    prefixes: Mapping[int, Sequence[str]] = {},
) -> Iterator[list[subprocess.Popen[str]]]:
    """`program RANK WORLD_SIZE RENDEZVOUS_FILE ARGUMENTS...` for each rank; all end with the block.

    `prefixes` are commands that start the program of a rank.
    """
    paths = os.pathsep.join(path for path in sys.path if path)
    variables = {**os.environ, "PYTHONPATH": paths, **environment}
    ranks = [
        subprocess.Popen(
            [
                *prefixes.get(rank, ()),
                *(sys.executable, str(program), str(rank), str(world_size), str(rendezvous)),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
        )
        for rank in range(world_size)
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def last_lines(ranks: list[subprocess.Popen[str]]) -> list[str]:
    """What each rank printed last; all must have ended well."""
    outputs = [rank.communicate(timeout=TIMEOUT_SECONDS) for rank in ranks]
    for number, (rank, (out, err)) in enumerate(zip(ranks, outputs, strict=True)):
        assert rank.returncode == 0, f"rank {number} failed:\n{out}\n{err}"
    return [out.splitlines()[-1] for out, _ in outputs]
