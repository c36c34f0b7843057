# SPDX-License-Identifier: Apache-2.0
"""Which op tables are found, and what is said of broken ones."""

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
from specimens import ADD_SCALED, SCALE_ROWS

from vllm_anvil.references.registration import MEASURES, SCHEMAS
from vllm_anvil.testing import registry

Install = Callable[[str, dict[str, str]], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """install(distribution, {entry point's value: source of its module}): importable from then."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, tables: dict[str, str]) -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"[{registry.GROUP}]", *(f"t{i} = {value}" for i, value in enumerate(tables))]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for value, source in tables.items():
            if source:
                (tmp_path / f"{value.split(':')[0]}.py").write_text(source)
        importlib.invalidate_caches()

    return write


def test_all_of_our_own_tables_load() -> None:
    found = registry.load()
    own = [p for p in found.problems if p.distribution == registry.DISTRIBUTION]
    assert [str(problem) for problem in own] == []
    assert {op.name for op in found.ops.values() if op.namespace == "anvil"} >= set(
        SCHEMAS
    ) - MEASURES


def test_users_ops_join(install: Install) -> None:
    source = "from specimens import ADD_SCALED, SCALE_ROWS\nOPS = [SCALE_ROWS, ADD_SCALED]\n"
    install("good", {"good_ops:OPS": source})
    found = registry.load(own=())
    assert found.problems == []
    assert found.ops == {"specimen::scale_rows": SCALE_ROWS, "specimen::add_scaled": ADD_SCALED}
    assert set(found.distributions.values()) == {"good"}


def test_a_broken_table_is_named_and_the_others_are_there(install: Install) -> None:
    good = "from specimens import SCALE_ROWS\nOPS = (SCALE_ROWS,)\n"
    install("alpha", {"alpha_ops:OPS": good})
    install(
        "beta",
        {
            "beta_missing:OPS": "",
            "beta_import:OPS": "import nothing_of_this_name\n",
            "beta_error:OPS": "OPS = 1 / 0\n",
            "beta_attribute:OPS": "ops = ()\n",
            "beta_empty:OPS": "OPS = ()\n",
            "beta_kind:OPS": "OPS = 3\n",
            "beta_single:OPS": "from specimens import ADD_SCALED as OPS\n",
            "beta_entry:OPS": "from specimens import ADD_SCALED\nOPS = (ADD_SCALED, 'op')\n",
            "beta_twice:OPS": good,
            "beta_cases:OPS": (
                "import dataclasses\nfrom specimens import ADD_SCALED\n"
                "OPS = [dataclasses.replace(ADD_SCALED, name=n, cases=c) for n, c in "
                "(('none', ()), ('same', ADD_SCALED.cases * 2))]\n"
            ),
        },
    )
    found = registry.load(own=())
    assert set(found.ops) == {"specimen::scale_rows", "specimen::add_scaled"}
    assert {problem.distribution for problem in found.problems} == {"beta"}
    told = {p.table.split(":")[0].removeprefix("beta_"): p.message for p in found.problems}
    assert "No module named 'beta_missing'" in told["missing"]
    assert "No module named 'nothing_of_this_name'" in told["import"]
    assert "beta_import.py:1)" in told["import"]
    assert told["error"].startswith("ZeroDivisionError: division by zero (")
    assert "has no attribute 'OPS'" in told["attribute"]
    assert told["empty"] == "it has no ops"
    assert "it is int, and must be an iterable of Op" in told["kind"]
    assert "it is Op, and must be an iterable of Op" in told["single"]
    assert "'op' is no vllm_anvil.testing.op_case.Op" in told["entry"]
    assert told["twice"] == "alpha has an op specimen::scale_rows already"
    cases = [problem.message for problem in found.problems if "beta_cases" in problem.table]
    assert cases == [
        "specimen::none: it has no cases",
        "specimen::same: two cases are called float32",
    ]


def test_an_own_table_cannot_be_replaced(install: Install) -> None:
    source = "from specimens import SCALE_ROWS\nOPS = (SCALE_ROWS,)\n"
    install("replacing", {"replacing_ops:OPS": source})
    found = registry.load(own=("replacing_ops:OPS",))
    assert found.distributions["specimen::scale_rows"] == registry.DISTRIBUTION
    assert [str(problem) for problem in found.problems] == [
        "op table replacing_ops:OPS of replacing: vllm-anvil has an op specimen::scale_rows already"
    ]


def test_choosing_ops() -> None:
    found = registry.Registry()
    found.add("t:OPS", "here", lambda: (SCALE_ROWS, ADD_SCALED))
    assert found.choose([]) == [SCALE_ROWS, ADD_SCALED]
    assert found.choose(["add_scaled"]) == [ADD_SCALED]
    assert found.choose(["specimen::scale_rows", "scale_rows"]) == [SCALE_ROWS]
    with pytest.raises(LookupError, match="no op 'other'; there are add_scaled, scale_rows$"):
        found.choose(["other"])
