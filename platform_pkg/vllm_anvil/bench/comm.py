# SPDX-License-Identifier: Apache-2.0
"""Collectives between ranks, beside gloo and what copying takes."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm_anvil import envs

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
SIZES = (8, 1 << 10, 8 << 10, 64 << 10, 1 << 20, 16 << 20)
DTYPES = ("float32", "bfloat16", "float16")
CHILD = Path(__file__).with_name("comm_child.py")


class RanksFailed(Exception):
    """A rank did not finish; the message has its last words."""


@dataclass(frozen=True)
class Row:
    """One operation on messages of `size` bytes: seconds of one run, a figure for each round."""

    operation: str
    size: int
    wrong: tuple[str, ...]  # ways whose result was not right
    seconds: dict[str, list[float]]

    def median(self, way: str) -> float:
        return statistics.median(self.seconds[way])

    def ratio(self, way: str) -> float:
        """How many times as long as anvil `way` takes in the same round, the median."""
        pairs = zip(self.seconds[way], self.seconds["anvil"], strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)

    def bandwidth(self, way: str) -> float:
        """Bytes of the message per second."""
        return self.size / self.median(way)


@dataclass(frozen=True)
class Measured:
    ranks: int
    dtype: str
    devices: int
    fallback: str  # why the ranks share no memory, "" where they do
    rows: tuple[Row, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_size(text: str) -> int:
    """ "64KiB" or "4096" to bytes. Raises ValueError."""
    match = re.fullmatch(r"([0-9]+)\s*(|B|KiB|MiB|GiB)", text.strip(), re.IGNORECASE)
    if match is None or int(match[1]) < 1:
        raise ValueError(f"--size {text}: give bytes, or a number with KiB or MiB, such as 64KiB")
    return int(match[1]) << {"": 0, "b": 0, "kib": 10, "mib": 20, "gib": 30}[match[2].lower()]


def measure(
    ranks: int,
    operations: Sequence[str],
    sizes: Sequence[int],
    dtype: str,
    rounds: int,
    seconds: float,
    timeout: float,
) -> Measured:
    """Runs the ranks, each a process on a device of its own as long as there are cores for that.

    Raises:
        RanksFailed: with the words of the rank that failed first.
    """
    cores = len(os.sched_getaffinity(0))
    devices = ranks if ranks <= min(cores, envs.MAX_DEVICES) else 1
    job = {
        "operations": list(operations),
        "sizes": list(sizes),
        "dtype": dtype,
        "rounds": rounds,
        "seconds": seconds,
    }
    with tempfile.TemporaryDirectory(prefix="anvil-bench-comm-") as name:
        folder = Path(name)
        result = folder / "result.json"
        arguments = [str(ranks), str(folder / "rendezvous"), str(result), json.dumps(job)]
        processes = [_start(rank, arguments, devices, folder) for rank in range(ranks)]
        try:
            _await(processes, folder, timeout)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        facts = json.loads(result.read_text())
    rows = tuple(
        Row(each["operation"], each["size"], tuple(each["wrong"]), each["seconds"])
        for each in facts["results"]
    )
    return Measured(ranks, dtype, devices, facts["fallback"], rows)


def _start(
    rank: int, arguments: Sequence[str], devices: int, folder: Path
) -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    environment["ANVIL_DEVICES"] = str(devices)
    environment["ANVIL_VISIBLE_DEVICES"] = str(rank if devices > 1 else 0)
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    with (folder / f"log{rank}").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, str(CHILD), str(rank), *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _await(processes: list[subprocess.Popen[bytes]], folder: Path, timeout: float) -> None:
    for rank, process in enumerate(processes):
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise RanksFailed(f"rank {rank} did not finish within {timeout:g} s") from None
        if process.returncode != 0:
            words = (folder / f"log{rank}").read_text(errors="replace").strip().splitlines()
            raise RanksFailed(f"rank {rank} failed:\n" + "\n".join(words[-15:]))


def draw(measured: Measured, path: Path) -> None:
    """Writes one chart per operation: microseconds by size, for each way."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row.operation for row in measured.rows))
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(4 * columns, 0.6 + 3.2 * lines), layout="constrained")
    figure.suptitle(f"{measured.ranks} ranks, {measured.dtype}")
    for place, name in enumerate(names, 1):
        axes: Any = figure.add_subplot(lines, columns, place)
        rows = [row for row in measured.rows if row.operation == name]
        for way, style in (("gloo", "s-"), ("anvil", "o-"), ("copy", "k:")):
            axes.plot([row.size for row in rows], [row.median(way) * 1e6 for row in rows], style)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(name, fontsize="medium")
        axes.set_xlabel("bytes")
        axes.set_ylabel("us")
        axes.legend(["gloo", "anvil", "copy"], fontsize="small")
    figure.savefig(path, dpi=120)
