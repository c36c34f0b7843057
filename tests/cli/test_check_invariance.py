# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil check-invariance`: what it compares, the kernel that it names, and what it refuses.

Kernels that depend on the batch come with a plugin of the engine (variant_kernels.py).
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from vllm_anvil.cli.app import app

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("ANVIL_DEVICE_MEMORY", "1GiB")
    for name in ("ANVIL_TARGET", "VLLM_TARGET_DEVICE", "VLLM_PLUGINS", "ANVIL_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`variant(kernel)` has engines load the plugin with this kernel."""
    site = tmp_path / "site"
    metadata = site / "variant_kernels-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: variant-kernels\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nvariant_kernels = variant_kernels:register\n"
    )
    shutil.copy(HERE / "variant_kernels.py", site)
    paths = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])

    def choose(kernel: str) -> None:
        monkeypatch.setenv("PYTHONPATH", paths)
        monkeypatch.setenv("VARIANT_KERNEL", kernel)

    return choose


def check(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["check-invariance", *map(str, arguments)])


@pytest.mark.parametrize(
    ("kernel", "op", "module"),
    [
        ("matmul", "anvil::packed_linear", "model.layers.0.self_attn.qkv_proj"),
        pytest.param("norm", "anvil::fused_add_rms_norm_", "model.", marks=pytest.mark.slow),
        pytest.param(
            "attention", "paged_attention", "model.layers.0.self_attn.attn", marks=pytest.mark.slow
        ),
    ],
)
def test_the_kernel_to_blame_is_named(
    kernel: str, op: str, module: str, tiny_llama: Path, tmp_path: Path, variant: Any
) -> None:
    variant(kernel)
    file = tmp_path / "out.json"
    done = check(
        *("--model", tiny_llama, "--dtype", "bfloat16", "--way", "graphs"),
        *("--combinations", "3", "--largest", "24", "--tokens", "8", "--json", file),
    )
    assert done.exit_code == 1, done.output
    found = json.loads(file.read_text())
    (way,) = found["ways"]
    assert 0 < len(way["differing"]) <= way["compared"] and found["mode"]
    first = found["first"]
    assert first["reproduced"] and first["difference"]["op"] == op
    assert first["difference"]["module"].startswith(module)
    said = f"the first difference is the result of {op} in {first['difference']['module']}"
    assert said in done.output.replace("\n", " ")


def test_no_bit_differs(tiny_llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = check(
        *("--model", tiny_llama, "--dtype", "bfloat16", "--way", "graphs", "--combinations", "4"),
        *("--largest", "24", "--tokens", "8", "--json", file),
    )
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    (way,) = found["ways"]
    assert way["compared"] >= 12 and way["differing"] == [] and found["first"] is None
    assert f"no bit of {way['compared']} requests differs" in done.output


@pytest.mark.slow
def test_all_ways(tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANVIL_DEVICES", "2")
    monkeypatch.setenv("ANVIL_SHARE_CORES", "1")
    file = tmp_path / "out.json"
    done = check("--model", tiny_llama, "--dtype", "bfloat16", "--json", file)
    assert done.exit_code == 0, done.output
    ways = {way["way"]: way for way in json.loads(file.read_text())["ways"]}
    assert list(ways) == [
        *("graphs", "chunks", "eager", "prefix-caching", "pre-emption", "tensor-parallel")
    ]
    assert all(way["compared"] > 0 for way in ways.values())
    assert ways["pre-emption"]["pre_emptions"] > 0 and ways["prefix-caching"]["cached"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--way", "x"], "--way x: there are graphs, chunks, eager"),
        (["--model", "/nowhere"], "/nowhere is no folder of a model"),
        (["--json", "/nowhere/x"], "--json /nowhere/x: there is no folder /nowhere"),
        (["--way", "tensor-parallel"], "needs two devices, and there is one: set ANVIL_DEVICES=2"),
    ],
)
def test_requests_that_are_wrong(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm_anvil.device

    monkeypatch.setattr(vllm_anvil.device, "device_count", lambda: 1)
    done = check(*arguments)
    assert done.exit_code == 2, done.output
    assert message in done.output


def test_too_little_memory(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANVIL_DEVICE_MEMORY", "16MiB")
    done = check("--model", tiny_llama, "--way", "graphs")
    assert done.exit_code == 1, done.output
    assert "while starting the engine" in done.output and "emory" in done.output
