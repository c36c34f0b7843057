# SPDX-License-Identifier: Apache-2.0
"""docs/reference/plugin_surfaces.md and capabilities.md say what there are tests for, and nothing
else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests/data/plugin_surfaces.json"


def test_the_record_is_of_the_marks_that_there_are(request: pytest.FixtureRequest) -> None:
    """Of the files that this session has collected, which in the whole suite are all."""
    from surface_record import COLLECTED, MARKS, file_of, in_order

    stash = request.config.stash
    whole = request.config.args == request.config.getini("testpaths")
    files = {file_of(item.nodeid) for item in stash[COLLECTED]}
    recorded = [
        {key: value for key, value in entry.items() if key != "outcome"}
        for entry in json.loads(RECORD.read_text())
        if whole or file_of(entry["test"]) in files
    ]
    assert recorded == in_order(stash[MARKS]), "run `make surfaces`"


def test_everything_recorded_was_shown() -> None:
    recorded = json.loads(RECORD.read_text())
    assert {entry["outcome"] for entry in recorded} == {"passed"}
