# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil parity` in an environment with this package and what it depends on: no engine."""

import sysconfig
from pathlib import Path
from typing import Any

import pytest

# Neither the engine nor what only its users and developers have.
LEFT_OUT = ("anvil", "vllm", "matplotlib", "pytest", "hypothesis", "transformers")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In place of conftest's folder of packages: the same without an engine."""
    folder = tmp_path_factory.mktemp("no_engine")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not any(name in path.name.lower() for name in LEFT_OUT):
            (folder / path.name).symlink_to(path)
    return folder


def parity(environment: Any, *arguments: str) -> tuple[dict[str, Any], str]:
    """The JSON that the command prints, and what it writes to standard error."""
    code = (
        "import json, subprocess, sys\n"
        "command = [sys.executable, '-m', 'vllm_anvil.cli', 'parity', '--json', '-']\n"
        f"command += {arguments!r}\n"
        "done = subprocess.run(command, capture_output=True, text=True)\n"
        "sys.stderr.write(done.stderr)\n"
        "print(json.dumps(json.loads(done.stdout) | {'status': done.returncode}))"
    )
    return environment.facts(code)


def test_runs_without_an_engine(environment: Any, wheel: Path) -> None:
    environment.unpack(wheel)
    found, _ = environment.facts(
        "import importlib.util, json\n"
        "names = ('vllm', 'matplotlib', 'pytest', 'torch', 'vllm_anvil')\n"
        "print(json.dumps({n: importlib.util.find_spec(n) is not None for n in names}))"
    )
    assert found == {
        **dict.fromkeys(("vllm", "matplotlib", "pytest"), False),
        **dict.fromkeys(("torch", "vllm_anvil"), True),
    }
    for device in ("cpu", "anvil"):
        document, errors = parity(environment, "--device", device, "--op", "silu_and_mul")
        assert document["status"] == 0, errors
        assert document["passed"]
        (run,) = document["runs"]
        assert run["implementations"]["anvil::silu_and_mul"].startswith("native (")
        assert run["engine_missing"] == "vLLM is not installed"
        assert len(run["results"]) > 10


def test_runs_by_the_references_where_nothing_was_compiled(environment: Any, wheel: Path) -> None:
    environment.unpack(wheel)
    for library in (environment.site / "vllm_anvil").glob("_C*"):
        library.unlink()
    document, errors = parity(environment, "--device", "cpu", "--op", "gelu_and_mul")
    assert document["status"] == 0, errors
    (run,) = document["runs"]
    assert run["implementations"] == {"anvil::gelu_and_mul": "reference"}
    assert "The references were run, since there are no native kernels: " in errors
    done = environment.run(
        "import sys; sys.argv = ['vllm-anvil', 'parity', '--device', 'anvil']\n"
        "from vllm_anvil.cli import main; main()"
    )
    assert done.returncode == 2
    assert "Error: vllm_anvil" in done.stderr
    done = environment.run(
        "import sys; sys.argv = ['vllm-anvil', 'parity', '--html', 'page.html']\n"
        "from vllm_anvil.cli import main; main()"
    )
    assert done.returncode == 2
    assert "pip install 'vllm-anvil[bench]'" in done.stderr
