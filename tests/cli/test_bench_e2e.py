# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil bench e2e`: two engines on a small model, and requests that are refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from vllm_anvil.bench.child_process import processes_of
from vllm_anvil.cli.app import app

# What would choose another platform for one side.
DECIDING = ("ANVIL_TARGET", "VLLM_TARGET_DEVICE", "VLLM_PLUGINS")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("ANVIL_DEVICE_MEMORY", "3GiB")
    for name in DECIDING:
        monkeypatch.delenv(name, raising=False)


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["bench", "e2e", *map(str, arguments)])


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_two_platforms(tiny_llama: Path, bare_python: str, tmp_path: Path) -> None:
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    done = bench(
        *("--model", tiny_llama, "--baseline-python", bare_python, "--baseline-eager"),
        *("--scenario", "decode:3x8+16", "--scenario", "prefill:2x20"),
        *("--scenario", "start-up", "--scenario", "memory"),
        *("--repeats", "1", "--json", file, "--plot", picture),
    )
    assert done.exit_code == 0, done.output
    document = json.loads(file.read_text())
    assert document["model"] == tiny_llama.name and document["dtype"] == "float32"
    runs = document["runs"]
    assert [run["platform"] for run in runs] == [
        "vllm_anvil.plugin.platform.AnvilPlatform",
        "vllm.platforms.cpu.CpuPlatform",
    ]
    assert all(len(run["ceilings"]) == 2 for run in runs)
    rows = {row["scenario"]: row for row in document["rows"]}
    assert list(rows) == ["decode:3x8+16", "prefill:2x20", "start-up", "memory"]
    for row in rows.values():
        for side in ("anvil", "in-tree"):
            assert row["sides"][side]["median"] > 0
        assert row["ratio"] == pytest.approx(
            row["sides"]["in-tree"]["median"] / row["sides"]["anvil"]["median"]
        )
    decode = rows["decode:3x8+16"]
    assert decode["same_tokens"] == 1.0  # of a float32 model
    for side in decode["sides"].values():
        assert side["of_floor"] > 0 and side["tokens_per_second"] == pytest.approx(
            3 / side["median"]
        )
    # A request that is admitted before the others ends before them.
    steps = len(runs[0]["scenarios"]["decode:3x8+16"]["steps_s"])
    assert 0 < steps <= 16 - 1 - 4
    parts = runs[1]["start_up"]
    assert parts["total_s"] == pytest.approx(
        parts["import_s"] + parts["load_s"] + parts["first_token_s"]
    )
    assert rows["memory"]["sides"]["anvil"]["median"] > 256 << 20
    assert (
        "decode:3x8+16" in done.output and "Ratio: the other's figure over anvil's" in done.output
    )
    assert picture.stat().st_size > 1000


def test_a_shape_without_a_baseline() -> None:
    """Made-up weights, no tokenizer; JSON on standard output."""
    done = bench(
        *("--shape", "smollm2-135m", "--baseline", "none", "--repeats", "1", "--json", "-"),
        *("--scenario", "decode:2x4+10"),
    )
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["changed_tokens"] == [] and len(document["runs"]) == 1
    (row,) = document["rows"]
    assert row["ratio"] is None and list(row["sides"]) == ["anvil"]


def test_wrong_sides_are_refused(
    tiny_llama: Path, bare_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ("--model", tiny_llama, "--scenario", "decode:1x4+8")
    done = bench(*chosen, "--baseline-python", sys.executable)
    assert done.exit_code == 1
    assert f"in-tree: {sys.executable} has vllm_anvil installed, so that it is no" in done.output
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    done = bench(*chosen, "--baseline", "none")
    assert done.exit_code == 1
    assert "anvil: vLLM chose the platform vllm.platforms.cpu.CpuPlatform in" in done.output


def test_a_baseline_that_dies_and_one_that_hangs(tiny_llama: Path, tmp_path: Path) -> None:
    dead = script(tmp_path / "dead", "#!/bin/sh\necho no engine here >&2\nexit 7\n")
    done = bench("--model", tiny_llama, "--baseline-python", dead)
    assert done.exit_code == 1
    assert "a look at in-tree ended with exit status 7. It ended its output with:" in done.output
    assert "no engine here" in done.output
    hung = script(tmp_path / "hung", "#!/bin/sh\nsleep 600\n")
    done = bench("--model", tiny_llama, "--baseline-python", hung, "--timeout", "1")
    assert done.exit_code == 1
    assert "a look at in-tree did not end within 1 s (--timeout). It said nothing." in done.output


def test_an_engine_that_does_not_start(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANVIL_DEVICE_MEMORY", "64MiB")
    file = tmp_path / "out.json"
    chosen = ("--model", tiny_llama, "--baseline", "none", "--scenario", "start-up")
    done = bench(*chosen, "--json", file)
    assert done.exit_code == 1
    assert "anvil, run 1 of 3 ended with exit status 1 while starting the engine" in done.output
    assert json.loads(file.read_text())["runs"][0]["doing"] == "starting the engine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--baseline", "cuda"], "--baseline cuda: there are in-tree and none"),
        (["--baseline-python", "/nowhere"], "there is no Python at /nowhere: --baseline-python "),
        (["--baseline", "none", "--scenario", "x"], "there is no scenario 'x'; there are decode-1"),
        (["--baseline", "none", "--model", "/nowhere"], "/nowhere is no folder of a model"),
        (["--baseline", "none", "--shape", "x"], "there is no shape 'x'; there are smollm2-135m"),
        (["--shape", "x", "--model", "y", "--baseline", "none"], "--model and --shape both name"),
        (["--baseline", "none", "--dtype", "int8"], "--dtype int8: there are float32, bfloat16"),
        (["--json", "/nowhere/x"], "--json /nowhere/x: there is no folder /nowhere"),
        (["--plot", "x.txt"], "--plot x.txt: end its name with .png, .svg, .pdf"),
        (["--online", "--shape", "llama-3.2-1b"], "--online makes its prompts with a tokenizer"),
        (["--online", "--scenario", "prefill"], "--scenario is not for --online"),
        (["--online", "--rate", "0"], "--rate: requests come at more than 0 a second"),
    ],
)
def test_requests_that_are_wrong(
    arguments: list[str], message: str, smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(smollm2.parents[1])
    done = bench(*arguments)
    assert done.exit_code == 2, done.output
    assert message in done.output


def test_a_signal_leaves_nothing_running(tiny_llama: Path, tmp_path: Path) -> None:
    """SIGTERM while the engine starts: one message, and its processes are gone."""
    note = tmp_path / "session"
    player = script(tmp_path / "python", f"#!/bin/sh\necho $$ > {note}\nsleep 600\n")
    command = [sys.executable, "-m", "vllm_anvil.cli", "bench", "e2e", "--model", str(tiny_llama)]
    command += ["--baseline-python", str(player)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as benchmark:
        for _ in range(600):
            if note.is_file() and note.read_text().strip():
                break
            time.sleep(0.1)
        session = int(note.read_text())
        assert processes_of(session)
        benchmark.send_signal(signal.SIGTERM)
        words = benchmark.communicate(timeout=60)[1]
    assert benchmark.returncode == 130
    assert "interrupted; nothing that was started is left running" in words
    assert processes_of(session) == []


@pytest.mark.slow
def test_servers_under_load(tiny_llama: Path, bare_python: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = bench(
        *("--online", "--model", tiny_llama, "--rate", "inf", "--requests", "4"),
        *("--input-tokens", "12", "--output-tokens", "6", "--repeats", "1", "--json", file),
        *("--baseline-python", bare_python, "--baseline-eager"),
    )
    assert done.exit_code == 0, done.output
    answers = json.loads(file.read_text())["answers"]
    assert [answer["side"] for answer in answers] == ["anvil", "in-tree"]
    for answer in answers:
        assert answer["found"]["completed"] == 4
        assert answer["found"]["total_output_tokens"] == 24
        assert answer["found"]["median_ttft_ms"] > 0
    assert "time to first token, median" in done.output and "between tokens, p99" in done.output
