# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest's: what tests marked `surface` show, and how they end.

`pytest -m surface --record-surfaces` writes tests/data/plugin_surfaces.json, which
docs/reference/plugin_surfaces.md and capabilities.md are made of. The record has an entry for each
mark of each test function: "passed" where all of its cases passed, else the worst that became of
one. Entries of files that were not collected stay.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

RECORD = Path(__file__).parent / "data/plugin_surfaces.json"
# The worst first.
OUTCOMES = ("failed", "skipped", "passed")


def marks(items: list[pytest.Item]) -> list[dict[str, str]]:
    """The marks of these tests in their order, each of a function once for all of its cases."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for item in items:
        test = item.nodeid.partition("[")[0]
        # Decorators are applied from the last to the first.
        for mark in reversed(list(item.iter_markers("surface"))):
            document, section, what = mark.args
            entry = {"document": document, "section": section, "what": what, "test": test}
            found.setdefault(tuple(entry.values()), entry)
    return list(found.values())


def file_of(test: str) -> str:
    return test.partition("::")[0]


def in_order(entries: list[dict[str, str]]) -> list[dict[str, str]]:
    """By file, whatever order they were run in; as they stand there within one."""
    return sorted(entries, key=lambda entry: file_of(entry["test"]))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-surfaces", action="store_true", help="write down what tests marked `surface` show"
    )


# Before tests are chosen by -m and -k.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[MARKS] = marks(items)
    config.stash[COLLECTED] = list(items)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        test = report.nodeid.partition("[")[0]
        _outcomes.setdefault(test, set()).add(report.outcome)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--record-surfaces"):
        files = {file_of(item.nodeid) for item in session.config.stash[COLLECTED]}
        before = json.loads(RECORD.read_text()) if RECORD.is_file() else []
        entries = [entry for entry in before if file_of(entry["test"]) not in files]
        entries += [{**one, "outcome": _worst(one["test"])} for one in session.config.stash[MARKS]]
        RECORD.write_text(json.dumps(in_order(entries), indent=1) + "\n")


def _worst(test: str) -> str:
    ended = _outcomes.get(test, {"skipped"})
    return next(outcome for outcome in OUTCOMES if outcome in ended)


MARKS: Any = pytest.StashKey[list[dict[str, str]]]()
COLLECTED: Any = pytest.StashKey[list[pytest.Item]]()
_outcomes: dict[str, set[str]] = {}
