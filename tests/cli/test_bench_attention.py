# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil bench attention` on tiny sizes: output, files, exit status."""

import csv
import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import vllm_anvil.device  # noqa: F401  before the references complete `torch.ops.anvil`
from anvil_attention.bench import suite
from anvil_attention.bench.batch_spec import parse
from anvil_attention.bench.model_shapes import MODEL_SHAPES, ModelShape
from anvil_attention.bench.problem import Problem
from anvil_attention.reference_implementation import reference_attention
from vllm_anvil.cli.app import app
from vllm_anvil.testing.recording import RecordedCall, Recording

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["--repeats", "2", "--min-time", "0", "--pause", "0", "--memory", "0.002"]
BY_HAND = ["--heads", "4", "--kv-heads", "2", "--head-size", "32", "--dtype", "float32"]


@pytest.fixture(autouse=True)
def wide_and_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["bench", "attention", *map(str, arguments)])


@pytest.mark.parametrize("device", ["cpu", "anvil"])
def test_tables_and_files(tmp_path: Path, device: str) -> None:
    files = {name: tmp_path / f"out.{name}" for name in ("json", "csv", "png")}
    result = bench(
        "2q1s40",
        "q9_q1s30",
        *("--device", device, "--impl", "reference", "--impl", "sdpa", *BY_HAND, *QUICK),
        *("--json", files["json"], "--csv", files["csv"], "--plot", files["png"]),
    )
    assert result.exit_code == 0, result.output
    for words in ("4/2x32 2q1s40 (decode)", "4/2x32 q9_q1s30 (mixed)", "ceilings", "reference"):
        assert words in result.output
    assert "vs sdpa" in result.output
    assert "gathered into contiguous tensors before, untimed" in result.output
    assert "geometric mean" in result.output

    content = json.loads(files["json"].read_text())
    assert content["baseline"] == "sdpa"
    assert content["geometric_mean_ratio"]["sdpa"] == {"ratio": 1.0, "problems": 2}
    rows = content["results"]
    assert [(r["batch"], r["implementation"]) for r in rows] == [
        (batch, name) for batch in ("2q1s40", "q9_q1s30") for name in ("reference", "sdpa")
    ]
    for row in rows:
        assert row["status"] == "passed"
        assert len(row["seconds"]) == 2
        moved = row["bytes_per_second"] * row["median_s"]
        assert moved == pytest.approx(row["moved_bytes"])
        ideal = max(
            row["moved_bytes"] / row["ceiling_bytes_per_second"],
            row["operations"] / row["ceiling_operations_per_second"],
        )
        assert row["fraction_of_ceiling"] == pytest.approx(ideal / row["median_s"])
    with files["csv"].open() as file:
        table = list(csv.DictReader(file))
    assert [row["implementation"] for row in table] == ["reference", "sdpa"] * 2
    assert float(table[0]["median_s"]) == rows[0]["median_s"]
    assert files["png"].read_bytes().startswith(b"\x89PNG")


def test_json_alone_on_standard_output() -> None:
    result = bench("q3", "--device", "cpu", "--impl", "reference", *BY_HAND, *QUICK, "--json", "-")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["results"][0]["batch"] == "q3"


def test_a_users_own_that_is_wrong(tmp_path: Path) -> None:
    example = ROOT / "examples" / "custom_attention" / "torch_attention.py"
    result = bench(
        *("q5", "--device", "cpu", *BY_HAND, *QUICK),
        *("--impl", f"{example}:attention", "--impl", f"{example}:broken"),
    )
    assert result.exit_code == 1
    assert "broken: wrong: decode, cache LBHNC: wrong values: output" in result.output
    assert "torch_attention.py:attention" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["8q1s"], "does not follow the grammar"),
        (["q3", "--model-shape", "lama-3-8b"], "is llama-3-8b meant?"),
        (["q3", "--impl", "refrence"], "is reference meant?"),
        (["q3", "--dtype", "int8"], "no dtype 'int8': choose bfloat16"),
        (["q3", "--kv-dtype", "int4"], "no kv-dtype 'int4'"),
        (["q3", "--layout", "NHD"], "no layout 'NHD'"),
        (["q3", "--heads", "4"], "needs both --heads and --head-size"),
        (["q3", "--kv-heads", "4"], "go with --heads and --head-size"),
        (["q3", "--heads", "4", "--kv-heads", "3", "--head-size", "8"], "no multiple of 3"),
        (["q3", "--window", "-1"], "window must be positive"),
        (["q3", "--device", "nothing"], "device 'nothing' cannot be used"),
        (["q3", "--impl", "sdpa", "--baseline", "engine"], "not among those measured: sdpa"),
        (["--suite", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["--replay", "nowhere.pt"], "there is no recording nowhere.pt"),
    ],
)
def test_options_that_make_no_sense(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = [] if "--device" in arguments else ["--device", "cpu"]
    result = bench(*arguments, *device)
    assert result.exit_code == 2, result.output
    words = " ".join(result.output.replace("│", " ").split())
    assert message in words


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "yaml", None)
    result = bench("q3", "--device", "cpu", "--plot", tmp_path / "a.png")
    assert result.exit_code == 2
    assert "--plot needs matplotlib: pip install 'vllm-anvil[bench]'" in result.output
    (tmp_path / "a.yaml").write_text("[]")
    result = bench("--suite", tmp_path / "a.yaml", "--device", "cpu")
    assert result.exit_code == 2
    assert "needs PyYAML" in result.output


def test_the_suite_that_comes_with_it() -> None:
    pytest.importorskip("yaml")
    path = ROOT / "benchmarks" / "attention_suite.yaml"
    problems = list(suite.suite_problems(path, suite.LayerOptions(block_size=16), "cpu"))
    assert len({(p.label, p.spec.kv_dtype) for p in problems}) == len(problems)
    assert {"decode", "prefill", "extend", "mixed"} == {p.kind for p in problems}
    assert {p.shape for p in problems} < MODEL_SHAPES.keys()
    assert all(p.spec.block_size == 16 for p in problems)


def test_a_suite_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "suite.json"
    groups = [{"shapes": ["smollm2"], "batches": ["q3"], "dtype": "float32", "window": 2}]
    path.write_text(json.dumps(groups))
    result = bench("--suite", path, "--device", "cpu", "--impl", "reference", *QUICK)
    assert result.exit_code == 0, result.output
    assert "smollm2 q3 (prefill): float32" in result.output
    assert "window 2" in result.output
    for change, message in (
        ({"batches": "q3"}, "batches must be a list"),
        ({"batches": ["q3s1"]}, "group 1: batch 'q3s1'"),
        ({"heads": 3}, "has heads, which are no options"),
    ):
        path.write_text(json.dumps([groups[0] | change]))
        result = bench("--suite", path, "--device", "cpu")
        assert result.exit_code == 2
        assert message in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize("right", [True, False])
def test_a_recorded_step(tmp_path: Path, right: bool) -> None:
    spec = ModelShape("small", 4, 2, 16).spec(torch.bfloat16, torch.bfloat16, 16, "anvil")
    problem = Problem("small", spec, parse("2q1s20_q7"))
    call = problem.host_call(seed=1)
    reference_attention(call)
    arguments = {
        field.name: getattr(call, field.name)
        for field in dataclasses.fields(call)
        if field.name != "workspace"
    }
    names = {"dtype": "torch.bfloat16", "kv_dtype": "torch.bfloat16"}
    arguments["spec"] = dataclasses.asdict(spec) | names
    if not right:
        bad = arguments | {"block_table": call.block_table + 1000}
        Recording({}, (RecordedCall("paged_attention", bad, {}),)).save(tmp_path / "bad.pt")
        result = bench("--replay", tmp_path / "bad.pt", "--device", "cpu")
        assert result.exit_code == 2
        assert "bad#0 cannot be run: anvil::check_block_table" in result.output
    output = call.output.clone() if right else call.output * 1.02
    other = RecordedCall("linear", {"input": torch.ones(2)}, {"result": torch.ones(2)})
    step = RecordedCall("paged_attention", arguments, {"output": output}, "layer 0")
    path = tmp_path / "step.pt"
    Recording({}, (other, step)).save(path)
    result = bench("--replay", path, "--device", "cpu", "--impl", "reference", *QUICK)
    assert result.exit_code == (0 if right else 1), result.output
    assert "step#0 2q1s20_q7 (mixed)" in result.output
    assert "recorded" in result.output
    assert ("recorded: wrong: wrong values" in result.output) is not right
