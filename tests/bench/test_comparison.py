# SPDX-License-Identifier: Apache-2.0
"""What the figures of two sides say together, and runs of engines that are only played."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_anvil.bench.child_process import ChildFailed
from vllm_anvil.bench.comparison import Comparison, Figures
from vllm_anvil.bench.model_cost import Ceilings, ModelCost
from vllm_anvil.bench.run import Refused, Run, Runner
from vllm_anvil.bench.scenario import scenarios_of
from vllm_anvil.bench.side import Side

SCENARIOS = scenarios_of(["decode:2x10+20", "prefill:2x10", "start-up", "memory"])
DECODE, PREFILL, START_UP, MEMORY = SCENARIOS
COST = ModelCost(4, 8, 2, 1, 2, 10, (None, None))


def side(name: str, script: Path | None = None) -> Side:
    return Side(name, str(script or sys.executable), os.environ, expect=f"{name}.")


def run(name: str, repeat: int, step: float, tokens: list[list[int]], **more: Any) -> Run:
    found = {
        "scenarios": {
            DECODE.name: {"seconds": step, "tokens": tokens},
            PREFILL.name: {"seconds": 10 * step, "tokens": [[t[0]] for t in tokens]},
        },
        "start_up": {"total_s": 100 * step},
        "peak_memory": {"1": 1000, "2": 2000},
    }
    return Run(name, repeat, found | more)


def comparison(*runs: Run, cost: ModelCost | None = None) -> Comparison:
    return Comparison(
        [side("anvil"), side("in-tree")], SCENARIOS, cost, "bfloat16", runs=list(runs)
    )


def test_medians_spreads_and_ratios() -> None:
    """The ratio is of runs of one repeat: what slowed both of them is not in it."""
    same = [[1, 2], [3, 4]]
    found = comparison(
        run("anvil", 0, 1.0, same),
        run("in-tree", 0, 2.0, [[1, 2], [3, 5]]),
        run("anvil", 1, 10.0, same),
        run("in-tree", 1, 15.0, same),
        run("anvil", 2, 4.0, same),
    )
    decode, prefill, start_up, memory = found.rows()
    assert decode.figures == {"anvil": Figures((1.0, 10.0, 4.0)), "in-tree": Figures((2.0, 15.0))}
    assert decode.figures["anvil"].median == 4.0
    assert decode.figures["anvil"].spread == pytest.approx(9 / 4)
    assert decode.ratio == pytest.approx((2.0 + 1.5) / 2)
    assert decode.rate("anvil") == pytest.approx(2 / 4.0)
    assert prefill.rate("in-tree") == pytest.approx(20 / 85.0)
    assert decode.same_tokens == 0.75 and prefill.same_tokens == 1.0
    assert start_up.figures["in-tree"].values == (200.0, 1500.0) and start_up.rate("anvil") is None
    assert memory.figures["anvil"].median == 3000 and memory.same_tokens is None
    assert decode.of_floor == {} and decode.bound is None


def test_each_run_is_held_against_the_ceilings_around_it() -> None:
    first, second = run("anvil", 0, 1.0, [[1]]), run("anvil", 1, 2.0, [[1]])
    first.ceilings = [Ceilings(100.0, 1e9), Ceilings(300.0, 1e9)]
    second.ceilings = [Ceilings(300.0, 1e9), Ceilings(500.0, 1e9)]
    found = comparison(first, second, cost=COST)
    decode = found.rows()[0]
    cost = COST.cost(DECODE, "bfloat16")
    assert cost is not None
    fractions = (cost.read_bytes / 200.0 / 1.0, cost.read_bytes / 400.0 / 2.0)
    assert decode.of_floor == {"anvil": pytest.approx(sum(fractions) / 2)}
    assert decode.bound == "reading"


def test_what_was_not_measured_is_left_out() -> None:
    found = comparison(Run("anvil", 0, {"doing": "starting the engine"}))
    assert found.rows() == []
    found = comparison(Run("anvil", 0, {"start_up": {"total_s": 3.0}}))
    assert [row.scenario for row in found.rows()] == [START_UP]


def test_changed_tokens_are_named() -> None:
    found = comparison(
        run("anvil", 0, 1.0, [[1]], check=[[1, 2, 3], [4, 5, 6]]),
        run("in-tree", 0, 1.0, [[1]], check=[[9, 9, 9], [9, 9, 9]]),
        run("anvil", 1, 1.0, [[1]], check=[[1, 2, 3], [4, 5, 6]]),
        run("anvil", 2, 1.0, [[1]], check=[[1, 2, 3], [4, 7, 8]]),
    )
    assert found.changed_tokens() == [
        "run 3 of anvil gave another token than run 1 did to the same prompt: number 2 of prompt 2"
    ]


# Plays engine_child.py: reports by the name of its file, then does what `end` says.
PLAYER = """#!{python}
import json, os, sys, time
job = json.load(open(sys.argv[-1]))
name = os.path.basename(sys.argv[0])
assert job["seed"].startswith("7/") and job["engine"] == {{"model": "m"}}
found = {{"doing": "measuring decode:2x10+20", "platform": name + ".P", "check": [[1]]}}
if {whole}:
    tokens = [[int(job["seed"][2:]), 5]]
    found["scenarios"] = {{
        one["name"]: {{"seconds": 1.0, "tokens": tokens}} for one in job["scenarios"]
    }}
found |= {found}
json.dump(found, open(job["result"], "w"))
print("last words", flush=True)
{end}
"""


def play(folder: Path, name: str, whole: bool = True, end: str = "", found: str = "{}") -> Side:
    script = folder / name
    script.write_text(PLAYER.format(python=sys.executable, whole=whole, end=end, found=found))
    script.chmod(0o755)
    return side(name, script)


def measure(folder: Path, *sides: Side, repeats: int = 2) -> tuple[Comparison, list[int]]:
    """The comparison, and how many runs there were whenever they were to be kept."""
    runner = Runner(folder, {"model": "m"}, SCENARIOS, 10, 7, timeout_s=5)
    found, kept = Comparison(sides, SCENARIOS, None, "bfloat16"), []
    try:
        found.run(runner, repeats, lambda words: None, lambda: kept.append(len(found.runs)))
    except ChildFailed as error:
        found.error = str(error)  # type: ignore[attr-defined]
    return found, kept


def test_sides_run_in_turn_with_the_same_prompts(tmp_path: Path) -> None:
    found, kept = measure(tmp_path, play(tmp_path, "anvil"), play(tmp_path, "in-tree"))
    assert [(one.side, one.repeat) for one in found.runs] == [
        ("anvil", 0),
        ("in-tree", 0),
        ("anvil", 1),
        ("in-tree", 1),
    ]
    assert kept == [1, 2, 3, 4]
    assert [one.tokens(DECODE) for one in found.runs] == [[[0, 5]], [[0, 5]], [[1, 5]], [[1, 5]]]


@pytest.mark.parametrize(
    ("end", "happened"),
    [
        ("sys.exit(3)", "ended with exit status 3"),
        ("os.abort()", "ended with signal SIGABRT"),
        ("time.sleep(60)", r"did not end within 5 s (--timeout)"),
    ],
)
def test_a_run_that_fails_ends_all_and_keeps_what_there_is(
    tmp_path: Path, end: str, happened: str
) -> None:
    found, kept = measure(tmp_path, play(tmp_path, "anvil"), play(tmp_path, "in-tree", end=end))
    assert found.error == (  # type: ignore[attr-defined]
        f"in-tree, run 1 of 2 {happened} while measuring decode:2x10+20. It ended its output "
        "with:\n  last words"
    )
    assert kept == [1, 2] and found.rows()[0].ratio == 1.0


def test_a_run_without_a_result(tmp_path: Path) -> None:
    silent = tmp_path / "anvil"
    silent.write_text("#!/bin/sh\necho hello\n")
    silent.chmod(0o755)
    found, kept = measure(tmp_path, side("anvil", silent))
    assert found.error.startswith(  # type: ignore[attr-defined]
        "anvil, run 1 of 2 ended without a result. It ended its output with:\n  hello"
    )
    assert kept == [1]


def test_a_refusal_is_passed_on(tmp_path: Path) -> None:
    refusing = play(tmp_path, "in-tree", found='{"refused": "it is another platform"}')
    with pytest.raises(Refused, match="in-tree: it is another platform"):
        measure(tmp_path, refusing)
