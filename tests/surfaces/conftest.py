# SPDX-License-Identifier: Apache-2.0
"""Programs with plugins beside them: distributions of their own, models, processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples/plugins"
SOFT_CAP = 30.0

sys.path.append(str(HERE.parent / "logits_processors"))  # row_references

EntryPoints = Mapping[str, Mapping[str, str]]


def install(folder: Path, name: str, entry_points: EntryPoints) -> None:
    """Makes a distribution with nothing but entry points; a process with the folder on its path
    has it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def example_entry_points() -> dict[str, dict[str, str]]:
    """Those of examples/plugins."""
    return tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]


def environment(*folders: Path, **variables: str) -> dict[str, str]:
    """This process's, with more folders to import from."""
    paths = [*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}


Run = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture(scope="session")
def run_program(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`run(script, job, folders, **environment)` -> (its result, what it said)."""

    def run(
        script: str, job: dict[str, Any], folders: list[Path], **variables: str
    ) -> tuple[dict[str, Any], str]:
        folder = tmp_path_factory.mktemp("program")
        files = folder / "job.json", folder / "result.json"
        files[0].write_text(json.dumps(job))
        done = subprocess.run(
            [sys.executable, str(HERE / script), *map(str, files)],
            env=environment(HERE, EXAMPLE, *folders, **variables),
            capture_output=True,
            text=True,
            timeout=600,
        )
        said = done.stdout + done.stderr
        if not files[1].is_file():
            pytest.fail(f"{script} ended with {done.returncode}:\n{said[-8000:]}", pytrace=False)
        return json.loads(files[1].read_text()), said

    return run


@pytest.fixture(scope="session")
def soft_cap_llama(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny Llama as a model of examples/plugins, which the engine has not."""
    folder = tmp_path_factory.mktemp("models") / "soft-cap-llama"
    shutil.copytree(tiny_llama, folder)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["SoftCapLlamaForCausalLM"]
    config["final_logit_softcapping"] = SOFT_CAP
    (folder / "config.json").write_text(json.dumps(config))
    return folder
