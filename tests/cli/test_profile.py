# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil profile` on a small model: the tables and files; requests that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from vllm_anvil.cli.app import app


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("ANVIL_DEVICE_MEMORY", "3GiB")
    for name in ("ANVIL_TARGET", "VLLM_TARGET_DEVICE", "VLLM_PLUGINS"):
        monkeypatch.delenv(name, raising=False)


def profile(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["profile", *map(str, arguments)])


def test_where_a_decode_step_goes(tiny_llama: Path, tmp_path: Path) -> None:
    file, timeline = tmp_path / "out.json", tmp_path / "trace.json"
    done = profile(
        *("--model", tiny_llama, "--scenario", "decode:3x8+16", "--top", "5"),
        *("--json", file, "--trace", timeline),
    )
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    assert found["steps"] == 16 - 1 - 4 and found["dropped"] == 0 and found["missing"] == []
    assert 0 < found["busy"] <= found["seconds"]
    assert sum(op["seconds"] for op in found["ops"]) == pytest.approx(found["busy"])
    ops = {op["name"]: op for op in found["ops"]}
    # Two layers a step, by whatever the model's attention is called there. The device is a step
    # behind the host that the steps are counted by, and may be within one at either end.
    attention = [op for name, op in ops.items() if "attention" in name]
    calls, steps = sum(op["calls"] for op in attention), found["steps"]
    each = round(calls / (2 * steps))
    assert each >= 1 and abs(calls / (2 * each) - steps) <= 1
    assert {op["kind"] for op in found["ops"]} >= {"native", "Triton"}
    phases = {phase["name"]: phase for phase in found["phases"]}
    assert phases.keys() >= {
        *("engine", "schedule", "prepare inputs", "launch forward", "launch sampling"),
        *("wait for tokens", "update requests", "make outputs"),
    }
    assert sum(p["seconds"] for p in phases.values()) == pytest.approx(found["seconds"])
    assert sum(p["device_idle"] for p in phases.values()) == pytest.approx(found["idle"])
    events = json.loads(timeline.read_text())["traceEvents"]
    assert {event["name"] for event in events} >= {*ops, *phases} - {"between steps"}
    assert "The device, by op" in done.output and f"{len(ops) - 5} others" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scenario", "memory"], "--scenario memory has no steps: choose a decode or a prefill"),
        (["--scenario", "x"], "there is no scenario 'x'"),
        (["--model", "/nowhere"], "/nowhere is no folder of a model"),
        (["--trace", "/nowhere/x"], "--trace /nowhere/x: there is no folder /nowhere"),
    ],
)
def test_requests_that_are_wrong(arguments: list[str], message: str) -> None:
    done = profile(*arguments)
    assert done.exit_code == 2, done.output
    assert message in done.output


def test_another_platform_is_refused(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    done = profile("--model", tiny_llama)
    assert done.exit_code == 1
    assert "anvil: vLLM chose the platform vllm.platforms.cpu.CpuPlatform in" in done.output
