# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil triton inventory`: what it lists, and with which exit status."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from vllm_anvil.cli.app import app
from vllm_anvil.plugin.triton_inventory import compilation, discovery, inventory
from vllm_anvil.plugin.triton_inventory.discovery import TritonFunction
from vllm_anvil.plugin.triton_inventory.inventory import Record

KERNELS = [
    TritonFunction("vllm.v1.sample.ops", "kernel", "a.py", 1, (), (), (), False, True, ()),
    TritonFunction("vllm.lora.ops", "kernel", "b.py", 2, (), (), (), False, True, ()),
    TritonFunction("vllm.lora.ops", "broken", "b.py", 3, (), (), (), False, True, ()),
    TritonFunction("vllm.lora.ops", "overridden", "b.py", 4, (), (), (), False, True, ()),
]
RECORD = Record(
    engine="0.0.1",
    reasons={
        "vllm.v1.sample.ops:kernel": "",
        "vllm.lora.ops:kernel": "",
        "vllm.lora.ops:broken": "operation [tt.x]",
    },
    overridden=frozenset({"vllm.lora.ops:overridden"}),
    checked=frozenset({"vllm.v1.sample.ops:kernel"}),
)


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "kernels", lambda root, package: KERNELS)
    monkeypatch.setattr(inventory, "recorded", lambda: RECORD)
    monkeypatch.setenv("COLUMNS", "200")


def listed(*arguments: str) -> tuple[int, dict[str, str]]:
    result = CliRunner().invoke(app, ["triton", "inventory", "--json", *arguments])
    return result.exit_code, {e["kernel"]: e["state"] for e in json.loads(result.stdout)}


def test_states_and_filters() -> None:
    states = {
        "vllm.v1.sample.ops:kernel": "compiled and checked",
        "vllm.lora.ops:broken": "failing",
        "vllm.lora.ops:kernel": "compiled",
        "vllm.lora.ops:overridden": "overridden",
    }
    assert listed() == (1, states)
    assert listed("--area", "sample") == (0, dict([*states.items()][:1]))
    assert listed("--state", "compiled", "--state", "overridden") == (
        0,
        dict([*states.items()][2:]),
    )
    assert listed("ops:bro") == (1, {"vllm.lora.ops:broken": "failing"})
    assert listed("nothing") == (0, {})


def test_the_table_has_reasons_counts_and_whose_record_it_is() -> None:
    result = CliRunner().invoke(app, ["triton", "inventory"])
    assert result.exit_code == 1
    assert "failing: operation [tt.x]" in result.output
    assert "4 kernels: 1 compiled and checked, 1 compiled, 1 overridden, 1 failing" in result.output
    assert "recorded with vLLM 0.0.1" in result.output


def test_compiling_replaces_what_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], int]] = []

    def compile_all(names, processes, progress):
        asked.append((list(names), processes))
        results = [compilation.Result(name, "no" if "sample" in name else "") for name in names]
        for result in results:
            progress(result)
        return compilation.Compilation(results, ["vllm.lora.ops:overridden"])

    monkeypatch.setattr(compilation, "compile_all", compile_all)
    status, states = listed("--compile", "--processes", "3")
    assert asked == [
        (["vllm.v1.sample.ops:kernel", "vllm.lora.ops:broken", "vllm.lora.ops:kernel"], 3)
    ]
    assert status == 1
    assert states["vllm.v1.sample.ops:kernel"] == "failing"
    assert states["vllm.lora.ops:broken"] == "compiled"


def test_an_unknown_kernel_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "recorded", lambda: replace(RECORD, reasons={}))
    assert listed("--area", "sample") == (1, {"vllm.v1.sample.ops:kernel": "unknown"})


@pytest.mark.parametrize("option", [["--area", "samples"], ["--state", "broken"]])
def test_a_wrong_filter_is_refused(option: list[str]) -> None:
    result = CliRunner().invoke(app, ["triton", "inventory", *option])
    assert result.exit_code == 1
    assert f"there is no {option[0].strip('-')} '{option[1]}'" in result.output


def test_without_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> None:
        raise ModuleNotFoundError("no package vllm is installed", name="vllm")

    monkeypatch.setattr(discovery, "package_root", missing)
    result = CliRunner().invoke(app, ["triton", "inventory"])
    assert result.exit_code == 1
    assert "no package vllm is installed" in result.output
