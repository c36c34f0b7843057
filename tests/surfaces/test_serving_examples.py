# SPDX-License-Identifier: Apache-2.0
"""The scripts of examples/serving, run as their README says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .plugin_environment import HERE
from .served import Server

EXAMPLE = HERE.parents[1] / "examples/serving"
SCRIPTS = ("offline", "generation", "prefix_caching", "embeddings")


def run(script: str, argument: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / f"{script}.py"), str(argument)],
        env={**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return done.stdout


def test_offline(smollm2: Path) -> None:
    text = run("offline", smollm2)
    assert re.search(r"^generate: 'The sea is' .+$", text, re.M)
    assert re.search(r"^chat: .*Paris", text, re.M)
    scores = [float(score) for score in re.findall(r"^beam: (-\S+) ", text, re.M)]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)


def test_generation(server: Server) -> None:
    text = run("generation", server.root)
    assert re.search(r"^streamed: .*Shakespeare.* in \d\d parts$", text, re.M)
    assert len(re.findall(r": -\d+\.\d+", text)) == 4
    assert re.search(r"^person: \{'name': '.*', 'age': \d+\}$", text, re.M)
    assert re.search(r"^year: 1[56]\d\d$", text, re.M)
    (arguments,) = re.findall(r"^tool: weather (\{.*\})$", text, re.M)
    assert json.loads(arguments.replace("'", '"'))["city"] in ("Rome", "Oslo")


def test_prefix_caching(server: Server) -> None:
    text = run("prefix_caching", server.root)
    counts = [tuple(map(int, pair)) for pair in re.findall(r"(\d+) of (\d+) tokens", text)]
    assert len(counts) == 3
    assert all(cached > 0.8 * prompt for cached, prompt in counts[1:]), text


def test_embeddings(embedding_server: Server) -> None:
    text = run("embeddings", embedding_server.root)
    found = re.findall(r"^cosine (\S+) (\w+ \w+)", text, re.M)
    cosines = {words: float(cosine) for cosine, words in found}
    assert len(cosines) == 3 and max(cosines, key=cosines.__getitem__) == "The blue"
    assert re.search(r"^best \S+ The blue whale", text, re.M)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_is_in_the_readme(script: str) -> None:
    assert {path.stem for path in EXAMPLE.glob("*.py")} == set(SCRIPTS)
    assert f"python {script}.py" in (EXAMPLE / "README.md").read_text()
