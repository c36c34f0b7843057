# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil bench comm`: two ranks on small messages, and requests that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_anvil.bench import comm


def run(*arguments: str) -> Any:
    from typer.testing import CliRunner

    from vllm_anvil.cli.app import app

    return CliRunner().invoke(app, ["bench", "comm", *arguments])


def test_every_operation_is_right_and_timed(tmp_path: Path) -> None:
    report, picture = tmp_path / "comm.json", tmp_path / "comm.png"
    sizes = ["--size", "8", "--size", "40KiB"]
    quick = ["--rounds", "2", "--seconds", "0.02", "--dtype", "bfloat16"]
    result = run(*sizes, *quick, "--json", str(report), "--plot", str(picture))
    assert result.exit_code == 0, result.output
    facts = json.loads(report.read_text())
    assert facts["ranks"] == 2
    assert facts["fallback"] == ""
    rows = [(row["operation"], row["size"]) for row in facts["rows"]]
    assert rows == [(name, size) for name in comm.OPERATIONS for size in (8, 40 << 10)]
    for row in facts["rows"]:
        assert row["wrong"] == []
        for way in ("anvil", "gloo", "copy"):
            assert len(row["seconds"][way]) == 2
            assert min(row["seconds"][way]) > 0
    assert picture.stat().st_size > 1000


def test_says_when_ranks_share_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANVIL_COMM", "gloo")
    result = run(
        "--operation", "all_reduce", "--size", "1KiB", "--rounds", "1", "--seconds", "0.01"
    )
    assert result.exit_code == 0, result.output
    assert "over gloo as well: rank 0: ANVIL_COMM=gloo" in result.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--operation", "all_recuse"], "--operation all_recuse: choose from all_reduce"),
        (["--size", "8 potatoes"], "--size 8 potatoes: give bytes"),
        (["--dtype", "int4"], "--dtype int4: choose from float32"),
        (["--json", "/no/such/folder/x.json"], "there is no folder"),
        (["--plot", "x.txt"], "end its name with"),
    ],
)
def test_refusals(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_sizes() -> None:
    assert [comm.parse_size(text) for text in ("8", "4KiB", "2MiB", "16 B")] == [
        8,
        4096,
        2 << 20,
        16,
    ]


def test_a_rank_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comm, "CHILD", Path("/no/such/program.py"))
    result = run("--operation", "all_reduce", "--size", "8")
    assert result.exit_code == 1
    assert "rank 0 failed" in result.output
