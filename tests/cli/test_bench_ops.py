# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil bench ops`: the table, the JSON, exit statuses."""

import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from vllm_anvil.cli.app import app
from vllm_anvil.testing import op_benchmark, registry
from vllm_anvil.testing.op_case import Case, Op


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def made(name: str, call: Any) -> Op:
    case = Case("rows8", lambda inputs: {"x": inputs.normal(8, 16)})
    return Op(
        name,
        "user",
        double,
        (case,),
        namespace="user",
        call=call,
        moved_bytes=lambda arguments: 2 * 8 * 16 * 4,
    )


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> registry.Registry:
        found = registry.Registry()
        ops = (made("double", lambda x: x + x), made("off", lambda x: x * 2.02))
        found.add("user_ops:OPS", "user", lambda: ops)
        return found

    monkeypatch.setattr(registry, "load", load)
    monkeypatch.setattr(op_benchmark, "CEILING_BYTES", 1 << 16)
    monkeypatch.setenv("COLUMNS", "160")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(
        app, ["bench", "ops", "--device", "cpu", "--seconds", "0.01", *arguments]
    )


def test_figures_as_json() -> None:
    done = run("--op", "double", "--json", "-")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    (timing,) = document["timings"]
    assert document["device"] == "cpu"
    assert (timing["op"], timing["case"]) == ("user::double", "rows8")
    assert timing["seconds"].keys() >= {"op", "reference"}
    assert timing["bandwidth"] == pytest.approx(1024 / timing["seconds"]["op"])
    assert timing["of_ceiling"] == pytest.approx(timing["bandwidth"] / timing["ceiling"])


def test_the_table_and_a_wrong_result() -> None:
    done = run()
    assert done.exit_code == 1
    assert "user::double" in done.output
    assert "user::off, rows8: not timed: result: element [" in done.output
    assert "Ceiling: reading memory at " in done.output


def test_requests_that_are_wrong() -> None:
    done = run("--op", "nothing")
    assert done.exit_code == 2
    assert "there is no op 'nothing'; there are double, off" in done.output
    assert run("--json", "/nowhere/file").exit_code == 2
