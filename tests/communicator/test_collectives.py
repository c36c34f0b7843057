# SPDX-License-Identifier: Apache-2.0
"""The communicator's collectives between processes, against sums and concatenations by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("collective_checks.py")
TIMEOUT_SECONDS = 300


def run_ranks(world_size: int, devices: list[str], rendezvous: Path) -> list[dict[str, str]]:
    """What each rank reports. A rank that dies or hangs ends the others."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(rank), str(world_size), str(rendezvous), *devices],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [rank.communicate(timeout=TIMEOUT_SECONDS) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    reports = []
    for number, (rank, (out, err)) in enumerate(zip(ranks, outputs, strict=True)):
        assert rank.returncode == 0, f"rank {number} failed:\n{out}\n{err}"
        reports.append(json.loads(out.splitlines()[-1]))
    return reports


@pytest.mark.parametrize("world_size", [2, 3])
def test_collectives(world_size: int, tmp_path: Path, subtests: pytest.Subtests) -> None:
    # All ways in one set of processes: starting these is most of the time.
    reports = run_ranks(world_size, ["cpu", "anvil", "anvil:group"], tmp_path / "rendezvous")
    assert all(reports)
    for rank, report in enumerate(reports):
        for check, failure in report.items():
            with subtests.test(check, rank=rank):
                assert not failure, failure
