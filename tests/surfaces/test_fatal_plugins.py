# SPDX-License-Identifier: Apache-2.0
"""Mistakes of plugins that the engine does not go on after: the server ends, with all that it has
started; the log says what was wrong and in which file."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .plugin_environment import HERE, environment, install
from .served import launched

GROUPS = {
    "vllm.endpoint_plugins": {
        "breaks_when_attached": "endpoints:BreaksWhenAttached",
        "breaks_at_start": "endpoints:BreaksAtStart",
    },
    "vllm.stat_logger_plugins": {
        "logger_breaks_when_made": "stat_loggers:BreaksWhenMade",
        "logger_breaks": "stat_loggers:BreaksWhenRecording",
    },
}
# By plugin: the file that the log has to name, and the words.
MISTAKES = {
    "breaks_when_attached": ("endpoints.py", "a mistake in the plugin's attach_router"),
    "breaks_at_start": ("endpoints.py", "a mistake in the plugin's init_state"),
    "logger_breaks_when_made": ("stat_loggers.py", "a mistake in the plugin's constructor"),
    "logger_breaks": ("stat_loggers.py", "a mistake in the plugin's record"),
}
# Each has a sister that is not.
SLOW = ("breaks_when_attached", "logger_breaks_when_made")
END_LIMIT_S = 300
Ends = Mapping[str, Future[dict[str, Any]]]


@pytest.fixture(scope="module")
def ends(
    request: pytest.FixtureRequest,
    tiny_llama: Path,
    at_once: Callable[..., Ends],
    tmp_path_factory: pytest.TempPathFactory,
) -> Ends:
    """By plugin, how a server with it ends, once asked for something where it becomes ready."""
    site = tmp_path_factory.mktemp("site")
    install(site, "surfaces_of_these_tests", GROUPS)
    options = ["--max-model-len", "64", "--max-num-seqs", "1", "--enforce-eager"]

    def end_of(name: str) -> dict[str, Any]:
        variables = environment(HERE, site, VLLM_PLUGINS=f"anvil,{name}")
        folder = tmp_path_factory.mktemp(name)
        with launched(folder, tiny_llama, options, variables) as server:
            answer = None
            with contextlib.suppress(RuntimeError):
                server.wait_until_ready()
                body = {"model": "model", "prompt": [5, 6, 7], "max_tokens": 4}
                answer, _ = server.ask("/v1/completions", body)
            status = server.process.wait(END_LIMIT_S)
            for _ in range(100):  # the engine's processes end by themselves
                if not server.left():
                    break
                time.sleep(0.2)
            said = server.log.read_text()
            return {"status": status, "left": server.left(), "said": said, "answer": answer}

    chosen = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    names = [name for name in MISTAKES if {"plugin": name} in chosen]
    return at_once({name: partial(end_of, name) for name in names})


def marked(section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface("plugin system", section, what)


@marked("endpoint plugins", "one that raises in `attach_router` or `init_state` ends the server")
@marked("stat logger plugins", "one that cannot be made, or raises in `record`, ends the server")
@pytest.mark.parametrize(
    "plugin",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in MISTAKES],
)
def test_the_server_ends(ends: Ends, plugin: str) -> None:
    file, words = MISTAKES[plugin]
    end = ends[plugin].result()
    assert end["left"] == []
    assert words in end["said"] and str(HERE / file) in end["said"]
    if plugin == "logger_breaks":
        # It has served: its request fails, and the engine stops the server in order.
        assert end["answer"] == 500
    else:
        assert end["answer"] is None and end["status"] != 0
