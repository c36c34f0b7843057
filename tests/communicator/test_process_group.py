# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's backend "anvil" between processes, against results by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import ranks

HERE = Path(__file__).parent
CHECKS = HERE / "process_group_checks.py"
FAILURES = HERE / "process_group_failures.py"


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_collectives(world_size: int, tmp_path: Path, subtests: pytest.Subtests) -> None:
    with ranks.started(CHECKS, world_size, tmp_path / "rendezvous") as started:
        reports = [json.loads(line) for line in ranks.last_lines(started)]
    for rank, report in enumerate(reports):
        for check, failure in report.items():
            with subtests.test(check, rank=rank):
                assert not failure, failure


def test_collectives_over_gloo(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """The way out for ranks that share no memory gives the same bits."""
    with ranks.started(
        CHECKS, 2, tmp_path / "rendezvous", environment={"ANVIL_COMM": "gloo"}
    ) as started:
        reports = [json.loads(line) for line in ranks.last_lines(started)]
    for rank, report in enumerate(reports):
        for check, failure in report.items():
            with subtests.test(check, rank=rank):
                assert not failure, failure


def survivors(scenario: str, world_size: int, tmp_path: Path) -> list[dict[str, object]]:
    """What the ranks but 1 report."""
    with ranks.started(FAILURES, world_size, tmp_path / "rendezvous", [scenario]) as started:
        started[1].wait(timeout=ranks.TIMEOUT_SECONDS)
        lines = ranks.last_lines([rank for number, rank in enumerate(started) if number != 1])
    return [json.loads(line) for line in lines]


def test_a_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    before = sorted(os.listdir("/dev/shm"))
    for report in survivors("killed", 3, tmp_path):
        error = str(report["error"])
        assert "Command 'all_reduce' failed: all_reduce on rank" in error
        assert "rank 1 (process" in error and "has died" in error
        assert "has failed before" in str(report["again"])
        assert report["seconds"] < 10
    assert sorted(os.listdir("/dev/shm")) == before


def test_a_rank_that_is_late_is_named(tmp_path: Path) -> None:
    (report,) = survivors("late", 2, tmp_path)
    error = str(report["error"])
    assert "all_reduce on rank 0" in error
    assert "rank 1 did not do its part within 1 s" in error


def test_a_work_carries_its_error(tmp_path: Path) -> None:
    (report,) = survivors("carried_by_work", 2, tmp_path)
    assert report["success"] is False
    assert "rank 1 (process" in str(report["raised"])


# Commands that run a program where it sees other processes, and where it has a /dev/shm of its own.
OTHER_PROCESSES = ["unshare", "--pid", "--fork", "--mount-proc"]
OTHER_SHM = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]


def require(prefix: list[str]) -> None:
    done = subprocess.run([*prefix, sys.executable, "-c", ""], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{' '.join(prefix)} is not allowed here: {done.stderr.strip()}")


@pytest.mark.parametrize("apart", [0, 1])
def test_ranks_that_share_no_memory_use_gloo(apart: int, tmp_path: Path) -> None:
    require(OTHER_PROCESSES)
    with ranks.started(
        FAILURES, 2, tmp_path / "rendezvous", ["apart"], prefixes={apart: OTHER_PROCESSES}
    ) as started:
        outputs = [rank.communicate(timeout=ranks.TIMEOUT_SECONDS) for rank in started]
    for out, err in outputs:
        report = json.loads(out.splitlines()[-1])
        assert "rank 1: " in report["reason"] and "cannot share memory" in report["reason"], err
        assert report["sums"] == [3.0, 3.0 * 99_999, 3.0]
        assert report["gathered"] == [0.0, 0.0, 1.0, 1.0]
    # Said once.
    assert [err.count("exchanges its data over gloo") for _, err in outputs] == [1, 0]


def test_a_private_shm_is_no_hindrance(tmp_path: Path) -> None:
    require(OTHER_SHM)
    with ranks.started(
        FAILURES, 2, tmp_path / "rendezvous", ["apart"], prefixes={1: OTHER_SHM}
    ) as started:
        reports = [json.loads(line) for line in ranks.last_lines(started)]
    for report in reports:
        assert report["reason"] == ""
        assert report["sums"] == [3.0, 3.0 * 99_999, 3.0]


def test_a_group_of_two_backends_ends_without_a_word() -> None:
    program = """
import torch.distributed as dist
import vllm_anvil.device
dist.init_process_group("cpu:gloo,anvil:anvil", rank=0, world_size=1, store=dist.HashStore())
dist.new_group([0], backend="cpu:gloo,anvil:anvil")
dist.destroy_process_group()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
