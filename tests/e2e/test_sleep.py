# SPDX-License-Identifier: Apache-2.0
"""Sleep mode: memory goes back to the operating system, and the engine wakes as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import ProgramRun

PROMPTS = [[1, 504, 3575, 282], [1, 3681, 314, 253, 5345, 282, 260], list(range(40, 100))]


def sleep_mode(section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface("sleep mode", section, what)


@pytest.fixture(scope="module")
def act(
    tmp_path_factory: pytest.TempPathFactory, program_run: ProgramRun
) -> Callable[..., dict[str, Any]]:
    """`act(model, acts, engine, **environment)`: what sleep_run.py found."""

    def run(model: Path, acts: list[str], engine: dict[str, Any], **variables: str) -> Any:
        kept = {"ANVIL_SLEEP_FOLDER": str(tmp_path_factory.mktemp("kept"))}
        arguments = {"max_model_len": 256, "max_num_seqs": 4, "enable_sleep_mode": True, **engine}
        job = {"engine": {"model": str(model), **arguments}, "prompts": PROMPTS, "acts": acts}
        return program_run("sleep_run.py", job, **kept, **variables)

    return run


@pytest.fixture(scope="module")
def found(smollm2: Path, act: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return act(
        smollm2,
        ["level_1", "by_tag", "nowhere_to_write", "level_2"],
        {"kv_cache_memory_bytes": 256 << 20},
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
    )


@sleep_mode(
    "answers",
    "after both levels and by tags, with graphs and weights from before: the same tokens",
)
@pytest.mark.parametrize("name", ["level_1", "by_tag", "nowhere_to_write", "level_2"])
def test_awake_it_is_as_before(name: str, found: dict[str, Any]) -> None:
    """Graphs, which hold addresses, are replayed with weights that are back there."""
    assert found[name]["tokens"] == found["tokens"]


@sleep_mode("memory", "weights and KV cache go back to the operating system")
def test_memory_goes_back(found: dict[str, Any]) -> None:
    level_1 = found["level_1"]
    print(f"returned {level_1['returned'] / level_1['held']:.1%} of weights and cache")
    assert level_1["held"] > 256 << 20
    assert level_1["returned"] >= 0.95 * level_1["held"]
    assert level_1["asleep"] and level_1["awake"]


@sleep_mode(
    "memory", "level 1 keeps weights on disk, in a file that a killed engine leaves nothing of"
)
def test_weights_are_kept_in_a_file_without_a_name(found: dict[str, Any]) -> None:
    assert found["level_1"]["files"] == [0, 1]


@sleep_mode("errors", "a call that needs what is away names it")
def test_what_is_away_is_named(found: dict[str, Any]) -> None:
    by_tag = found["by_tag"]
    assert "anvil:0 of rank 0 is asleep" in by_tag["asleep"]
    assert "its weights and kv_cache are not in memory" in by_tag["asleep"]
    assert "its weights are not in memory" in by_tag["checksums_asleep"]
    assert by_tag["checksums"] == ""
    assert "its kv_cache are not in memory" in by_tag["cache_asleep"]
    assert by_tag["between"] and by_tag["awake"]


@sleep_mode("weights", "`reload_weights` after level 2: the same checksums")
def test_discarded_weights_are_read_again(found: dict[str, Any]) -> None:
    assert found["level_2"]["discarded"] and found["level_2"]["same"]


@sleep_mode("errors", "a folder that cannot be written to leaves the engine as it was")
def test_a_folder_that_cannot_be_written(found: dict[str, Any]) -> None:
    said = found["nowhere_to_write"]["said"]
    assert "/no/such/folder" in said and "Set ANVIL_SLEEP_FOLDER" in said


@sleep_mode("several devices", "tensor-parallel ranks, both levels")
def test_two_devices_sleep(tiny_llama: Path, act: Callable[..., dict[str, Any]]) -> None:
    """Each rank keeps its part, and wakes with it; the engine is in processes of its own."""
    two = act(
        tiny_llama,
        ["two_devices"],
        {"tensor_parallel_size": 2, "dtype": "float32", "kv_cache_memory_bytes": 8 << 20},
        ANVIL_DEVICES="2",
        ANVIL_SHARE_CORES="1",
    )
    for level in ("1", "2"):
        assert two["two_devices"][level] == two["tokens"], level
