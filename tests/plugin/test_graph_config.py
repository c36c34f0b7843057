# SPDX-License-Identifier: Apache-2.0
"""Which steps are captured into graphs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import CUDAGraphMode, ParallelConfig
from vllm.engine.arg_utils import EngineArgs

from vllm_anvil.plugin import graph_config

pytestmark = pytest.mark.usefixtures("platform")


@pytest.fixture
def configure(tiny_model: Path) -> Any:
    def configure(**options: Any) -> Any:
        return EngineArgs(model=str(tiny_model), **options).create_engine_config()

    return configure


@pytest.mark.parametrize("requests", [1, 2, 7, 8, 9, 13, 100, 128, 256, 1000])
def test_capture_sizes(requests: int) -> None:
    sizes = graph_config.capture_sizes(requests)
    largest = min(requests, graph_config.LARGEST)
    assert sizes == sorted(set(sizes)) and sizes[0] == 1 and sizes[-1] == largest
    for batch in range(1, largest + 1):
        size = min(size for size in sizes if size >= batch)
        assert 2 * size < 3 * batch or size == batch + 1 or size == batch


def test_decode_steps_of_every_size_by_default(configure: Any) -> None:
    compilation = configure(max_num_seqs=20).compilation_config
    assert compilation.cudagraph_mode == CUDAGraphMode.FULL_DECODE_ONLY
    assert compilation.cudagraph_capture_sizes == [1, 2, 3, 4, 6, 8, 12, 16, 20]
    assert compilation.max_cudagraph_capture_size == 20


def test_steps_that_verify_drafts_are_captured(configure: Any) -> None:
    """For one request to all of them, with a row for each draft and one more."""
    speculative = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2}
    compilation = configure(max_num_seqs=6, speculative_config=speculative).compilation_config
    assert compilation.cudagraph_capture_sizes == [1, 2, 3, 4, 5, 6, 10, 15, 20, 30]
    assert compilation.max_cudagraph_capture_size == 30


def test_what_the_user_chooses_is_kept(configure: Any) -> None:
    chosen = {"cudagraph_capture_sizes": [1, 5], "cudagraph_mode": "FULL"}
    compilation = configure(compilation_config=chosen).compilation_config
    assert compilation.cudagraph_capture_sizes == [1, 5]
    assert compilation.cudagraph_mode == CUDAGraphMode.FULL
    compilation = configure(compilation_config={"max_cudagraph_capture_size": 4}).compilation_config
    assert compilation.cudagraph_capture_sizes == [1, 2, 4]


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ({"enforce_eager": True}, {}),
        ({"compilation_config": {"cudagraph_mode": "NONE"}}, {}),
        ({}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}),
        ({}, {"ANVIL_RECORD": "/tmp"}),
        ({"runner": "pooling"}, {}),
    ],
)
def test_nothing_is_captured(
    options: dict[str, Any],
    environment: dict[str, str],
    configure: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    compilation = configure(**options).compilation_config
    assert compilation.cudagraph_mode == CUDAGraphMode.NONE
    assert not compilation.cudagraph_capture_sizes


@pytest.mark.parametrize("option", ["tensor", "pipeline", "data"])
def test_steps_of_several_ranks_are_captured(option: str) -> None:
    parallel = ParallelConfig(**{f"{option}_parallel_size": 2})
    config: Any = SimpleNamespace(
        use_v2_model_runner=True, parallel_config=parallel, model_config=None
    )
    assert graph_config._not_captured(config) is None
