# SPDX-License-Identifier: Apache-2.0
"""The scripts of examples/plugins, run as their README says, beside the package's entry points."""

from __future__ import annotations

import math
import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/plugins"
SCRIPTS = ("logits_processor", "general_plugin", "stat_logger", "endpoint", "io_processor")


def run(site: Path, script: str, *arguments: str) -> str:
    paths = [str(site), str(EXAMPLE), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / f"{script}.py"), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return done.stdout


@pytest.fixture(scope="module")
def said(
    smollm2: Path,
    tiny_llama: Path,
    minilm: Path,
    tmp_path_factory: pytest.TempPathFactory,
    at_once: Callable[..., Mapping[str, Future[str]]],
) -> Mapping[str, Future[str]]:
    """What each script prints."""
    site = tmp_path_factory.mktemp("site")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in e.items()) for group, e in groups]
    (info / "entry_points.txt").write_text("\n".join(lines))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    arguments = {script: [str(tiny_llama)] for script in SCRIPTS}
    arguments["general_plugin"] = [
        str(smollm2)
    ]  # which is surer of its tokens than the cap lets it
    arguments["io_processor"] = [str(minilm)]
    arguments["endpoint"].append(port)
    return at_once({name: partial(run, site, name, *given) for name, given in arguments.items()})


def test_logits_processor(said: Mapping[str, Future[str]]) -> None:
    lines = dict(re.findall(r"^(\w[\w ]*): '(.*)'$", said["logits_processor"].result(), re.M))
    assert lines.keys() == {"nothing", "one token", "no three tokens twice", "no end"}
    assert lines["one token"] == "hello" * 24


def test_general_plugin(said: Mapping[str, Future[str]]) -> None:
    text = said["general_plugin"].result()
    (logprob,) = re.findall(r"^SoftCapLlamaForCausalLM: .*, (-\d+\.\d+)$", text, re.M)
    # No token is more probable than exp(2 cap) times another, of 49,000: the eight together have
    # less than these would have.
    assert float(logprob) < 8 * math.log(math.exp(10) / (math.exp(10) + 49000))


def test_stat_logger(said: Mapping[str, Future[str]]) -> None:
    text = said["stat_logger"].result()
    assert re.search(r": \d+ tokens$", text, re.M)
    (steps,) = re.findall(r"^anvil:steps_total\{.*\} (\S+)$", text, re.M)
    assert float(steps) >= 16


def test_endpoint(said: Mapping[str, Future[str]]) -> None:
    text = said["endpoint"].result()
    assert re.search(r'^/anvil/memory: \[\{.*"limit":', text, re.M)
    assert re.search(r"^anvil:graph_replays_total\{.*\} [1-9]", text, re.M)


def test_io_processor(said: Mapping[str, Future[str]]) -> None:
    text = said["io_processor"].result()
    assert re.search(r"^Which instrument is this\? \S+ A violin", text, re.M)
    assert re.search(r"^How do I bake\? \S+ Bread", text, re.M)


def test_every_script_is_run() -> None:
    assert {path.stem for path in EXAMPLE.glob("*.py")} == set(SCRIPTS)
    readme = (EXAMPLE / "README.md").read_text()
    assert all(f"python {script}.py" in readme for script in SCRIPTS)
