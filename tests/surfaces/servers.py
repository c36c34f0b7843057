# SPDX-License-Identifier: Apache-2.0
"""Servers that tests of several files ask, each started once, and their clients."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from .plugin_environment import EXAMPLE, HERE, environment, example_entry_points, install
from .served import Server, serve

# They stay while other engines start.
MEMORY = {"ANVIL_DEVICE_MEMORY": os.environ.get("ANVIL_DEVICE_MEMORY", "3GiB")}
PROCESSORS = [
    "plugins_example.target_token:TargetToken",
    "vllm_anvil.logits_processors:AllowedTokens",
    "processors:Breaks",
]


@pytest.fixture(scope="session")
def server(recommending: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`vllm serve` of SmolLM2 in float32, for all that is asked by HTTP, with logits processors,
    the stat logger and the endpoints of Anvil, and endpoint plugins that make mistakes."""
    folder = tmp_path_factory.mktemp("server")
    groups = {
        "vllm.logits_processors": {"above": "processors:FromEntryPoint"},
        "vllm.endpoint_plugins": {
            "breaks_when_asked": "endpoints:BreaksWhenAsked",
            "breaks_when_made": "endpoints:BreaksWhenMade",
            "not_named": "endpoints:NotNamed",
        },
    }
    install(folder, "surfaces_of_these_tests", groups)
    options = ["--max-model-len", "512", "--max-num-seqs", "16", "--dtype", "float32"]
    # Few blocks, which few requests make use of: what the server holds grows no further.
    options += ["--num-gpu-blocks-override", "96"]
    options += ["--runner", "generate", "--generation-config", "vllm"]
    options += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    options += ["--enable-prompt-tokens-details", "--trust-request-chat-template"]
    options += ["--enable-sleep-mode"]
    options += ["--weight-transfer-config", '{"backend": "anvil"}']
    options += ["--profiler-config.profiler", "torch"]
    options += ["--profiler-config.torch_profiler_dir", str(folder / "traces")]
    options += ["--profiler-config.torch_profiler_with_stack", "false"]
    options += ["--logits-processors", *PROCESSORS]
    variables = environment(
        HERE,
        EXAMPLE,
        folder,
        VLLM_PLUGINS="anvil,anvil_stats,anvil_endpoints,breaks_when_asked,breaks_when_made",
        VLLM_LOG_STATS_INTERVAL="1",
        VLLM_SERVER_DEV_MODE="1",  # which has the routes of sleep mode
        **MEMORY,
    )
    with serve(folder, recommending, options, variables) as found:
        yield found


@pytest.fixture(scope="session")
def openai_client(server: Server) -> Iterator[OpenAI]:
    """The unmodified client of that server."""
    web = httpx.Client(trust_env=False)
    with OpenAI(base_url=f"{server.root}/v1", api_key="none", http_client=web) as client:
        yield client


def async_openai_client(server: Server) -> AsyncOpenAI:
    web = httpx.AsyncClient(trust_env=False, timeout=600)
    return AsyncOpenAI(base_url=f"{server.root}/v1", api_key="none", http_client=web)


@pytest.fixture(scope="session")
def choosing(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of MiniLM, whose `config.json` chooses an IO processor."""
    folder = tmp_path_factory.mktemp("models") / "minilm"
    shutil.copytree(minilm, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"io_processor_plugin": "worst_first"}))
    return folder


@pytest.fixture(scope="session")
def processors_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's entry points, and IO processors of these tests."""
    folder = tmp_path_factory.mktemp("site")
    groups = example_entry_points()
    names = ("worst_first", "breaks", "cannot_be_named")
    groups["vllm.io_processor_plugins"] |= {name: f"io_processors:{name}" for name in names}
    install(folder, "surfaces_of_these_tests", groups)
    return folder


@pytest.fixture(scope="session")
def embedding_server(
    choosing: Path, processors_site: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """`vllm serve` of MiniLM in float32 with an IO processor."""
    variables = environment(HERE, EXAMPLE, processors_site, **MEMORY)
    folder = tmp_path_factory.mktemp("server")
    with serve(folder, choosing, ["--dtype", "float32"], variables) as found:
        yield found
