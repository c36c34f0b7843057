# SPDX-License-Identifier: Apache-2.0
"""The CUDA reference path, as far as it can be run without a GPU; cuda_report.py does it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
# What vLLM and the plugin take for the installed engine and torch: builds for CUDA.
DISTRIBUTIONS = (("vllm", "0.32.0"), ("torch", "2.13.0"))


@pytest.fixture(scope="module")
def cuda_build(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that asks for the path, where a CUDA build is installed."""
    root = tmp_path_factory.mktemp("cuda-build")
    for name, version in DISTRIBUTIONS:
        info = root / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    paths = [str(root), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"ANVIL_TARGET": "cuda", "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture(scope="module")
def report(python: Any, cuda_build: dict[str, str], tiny_model: Path) -> dict[str, Any]:
    done = python.run(str(HERE / "cuda_report.py"), str(tiny_model), **cuda_build)
    assert done.returncode == 0, done.stdout + done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    return json.loads(line.removeprefix("REPORT "))


def test_vllm_takes_our_subclass_of_its_platform(report: dict[str, Any]) -> None:
    found = report["found"]
    assert found["class"] == "AnvilCudaPlatform"
    assert found["derived"] == [True, True, True]  # platform, worker, communicator
    assert found["is_cuda"] == [True, True, False]
    assert found["device"] == "cuda"
    assert found["worker"] == "AnvilCudaWorker"


def test_it_runs_eagerly_even_where_the_user_wants_otherwise(report: dict[str, Any]) -> None:
    assert (report["found"]["mode"], report["found"]["graphs"]) == ("NONE", "NONE")
    assert not report["found"]["custom_all_reduce"]
    assert "vllm_c" not in report["found"]["ir"]


def test_the_anvil_device_stays_out_of_the_process(report: dict[str, Any]) -> None:
    assert report["found"]["privateuse1"] == "privateuseone"
    assert report["loaded"] == []


def test_overridden_members_are_the_engines(report: dict[str, Any]) -> None:
    assert report["signatures"] == []


def test_attention_is_ours_or_refused(report: dict[str, Any]) -> None:
    attention = report["attention"]
    assert attention["plain"] == "anvil_attention.backend.AnvilAttentionBackend"
    assert attention["by name"] == attention["plain"]
    assert "FLASH_ATTN does not run on the CUDA reference path" in attention["another"]
    assert attention["mla"] == "anvil_attention.mla_backend.AnvilMLABackend"
    assert attention["sparse"].startswith("refused: The CUDA reference path's attention backend")
    assert "models with sparse attention cannot run here" in attention["sparse"]


def test_layers_run_by_the_references(report: dict[str, Any]) -> None:
    assert report["layers"]["class"] == "AnvilRMSNorm"
    assert report["layers"]["runs"]
    assert report["layers"]["error"] < 1e-5
    assert report["layers"]["devices"] == ["anvil", "cuda"]
    assert report["layers"]["ops"] == ["anvil::layer_norm", "anvil::rms_norm"]
    assert "AnvilVocabParallelEmbedding" in report["layers"]["names"]


def test_attention_computes_without_the_device(report: dict[str, Any]) -> None:
    assert report["attention_error"] < 1e-5


def test_options_are_refused_by_name(report: dict[str, Any]) -> None:
    for option, said in report["refused"].items():
        assert f"{option} is not supported on the CUDA reference path: " in said


def test_what_keeps_it_from_starting(report: dict[str, Any]) -> None:
    said = report["obstacles"]
    assert said["none"] == "was constructed"
    assert said["variable"].startswith("ANVIL_DEVICES='0': must be a whole number")
    assert "finds no CUDA GPU" in said["no GPU"]
    assert "torch's accelerator in this process is xpu, not CUDA" in said["another accelerator"]


def test_an_autoloaded_device_keeps_it_from_starting(
    python: Any, cuda_build: dict[str, str]
) -> None:
    code = "import cuda_report; cuda_report.stand_in(None); from vllm.platforms import cuda\n"
    code += "from vllm_anvil.plugin.cuda_platform import AnvilCudaPlatform; AnvilCudaPlatform()"
    done = python(code, **cuda_build, ANVIL_AUTOLOAD="1")
    assert done.returncode != 0
    assert "is anvil, not CUDA. Unset ANVIL_AUTOLOAD" in done.stderr


def test_without_a_gpu_it_is_an_error(python: Any) -> None:
    code = "import vllm_anvil; print(vllm_anvil.register())"
    done = python(code, ANVIL_TARGET="cuda")
    assert (done.returncode, done.stdout) == (0, "None\n")
    assert "ANVIL_TARGET=cuda asks for the CUDA reference path, but" in done.stderr
    strict = python(code, ANVIL_TARGET="cuda", ANVIL_STRICT="1")
    assert strict.returncode != 0
    assert "this machine shows no CUDA GPU" in strict.stderr
