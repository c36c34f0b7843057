# SPDX-License-Identifier: Apache-2.0
"""The communicator's collectives between processes, against sums and concatenations by hand."""

import json
from pathlib import Path

import pytest

from . import ranks

PROGRAM = Path(__file__).with_name("collective_checks.py")


def run_ranks(world_size: int, devices: list[str], rendezvous: Path) -> list[dict[str, str]]:
    """What each rank reports."""
    with ranks.started(PROGRAM, world_size, rendezvous, devices) as started:
        return [json.loads(line) for line in ranks.last_lines(started)]


@pytest.mark.parametrize("world_size", [2, 3])
def test_collectives(world_size: int, tmp_path: Path, subtests: pytest.Subtests) -> None:
    # All ways in one set of processes: starting these is most of the time.
    reports = run_ranks(world_size, ["cpu", "anvil", "anvil:group"], tmp_path / "rendezvous")
    assert all(reports)
    for rank, report in enumerate(reports):
        for check, failure in report.items():
            with subtests.test(check, rank=rank):
                assert not failure, failure
