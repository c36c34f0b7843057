# SPDX-License-Identifier: Apache-2.0
"""Programs with plugins beside them: distributions of their own, models, processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .plugin_environment import EXAMPLE, HERE, environment
from .servers import (  # noqa: F401  fixtures
    choosing,
    embedding_server,
    openai_client,
    processors_site,
    server,
)

SOFT_CAP = 30.0
# What `recommend` makes a model recommend.
REPETITION, SHORT = 1.3, 9

sys.path.append(str(HERE.parent / "logits_processors"))  # row_references

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


def recommend(model: Path, folder: Path) -> None:
    """Makes `folder` the same model, whose `generation_config.json` recommends how to sample."""
    folder.mkdir()
    for file in model.iterdir():
        if file.name != "generation_config.json":
            (folder / file.name).symlink_to(file)
    config = json.loads((model / "generation_config.json").read_text())
    config |= {"top_k": 1, "repetition_penalty": REPETITION, "max_new_tokens": SHORT}
    (folder / "generation_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="session")
def recommending(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "recommending"
    recommend(smollm2, folder)
    return folder
