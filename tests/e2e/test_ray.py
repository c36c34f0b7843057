# SPDX-License-Identifier: Apache-2.0
"""The engine's ranks as actors of a real Ray cluster of two hosts.

The clusters' programs run in processes of their own. Nothing asserts a time: what would never end
is ended by the test's own limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from ray_hosts import RayHost, refused, start_first  # noqa: E402

PROMPTS = [[11, 12, 13, 14, 15], [2001, 2002, 2003]]
TOKENS = 12
DTYPE = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 4}
# Ranks find functions of ray_run.py by its name.
IMPORTS = {"PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
ONE_OF_TWO = {"ANVIL_DEVICES": "2", "ANVIL_DEVICE_MEMORY": "1GiB"} | IMPORTS


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Short, for the names of Ray's sockets."""
    path = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def hosts(folder: Path) -> Iterator[tuple[RayHost, RayHost, dict[str, str]]]:
    """A host with device 0 and one with device 1 of this machine, and the environment of programs
    on the first."""
    if (reason := refused()) is not None:
        pytest.skip(reason)
    first, environment = start_first(folder, 1, ANVIL_VISIBLE_DEVICES="0", **ONE_OF_TWO)
    try:
        further = RayHost(
            "127.0.0.3",
            True,
            f"--address={environment['RAY_ADDRESS']}",
            '--resources={"ANVIL": 1}',
            ANVIL_VISIBLE_DEVICES="1",
            **ONE_OF_TWO,
        )
        try:
            yield first, further, environment
        finally:
            further.stop()
    finally:
        first.stop()


def job(folder: Path, model: Path, **options: Any) -> str:
    engine = {"model": str(model), "distributed_executor_backend": "ray"} | DTYPE | options
    path = folder / f"job{options['tensor_parallel_size']}.json"
    path.write_text(json.dumps({"engine": engine, "prompts": PROMPTS, "tokens": TOKENS}))
    return str(path)


@contextlib.contextmanager
def program(job: str, environment: dict[str, str], **more: str) -> Iterator[subprocess.Popen[str]]:
    """ray_run.py on the first host; it does not outlive the block."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ANVIL_", "RAY_", "OMP_"))}
    process = subprocess.Popen(
        [sys.executable, str(HERE / "ray_run.py"), job],
        env=clean | environment | IMPORTS | {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"} | more,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the engine's process too
        process.wait()


def refusal(job: str, environment: dict[str, str]) -> str:
    """What an engine that does not start says."""
    with program(job, environment, VLLM_ENABLE_V1_MULTIPROCESSING="0") as process:
        said, _ = process.communicate()
        assert process.returncode != 0, said
    return said


def read_until(process: subprocess.Popen[str], word: str) -> tuple[Any, str]:
    """The JSON of the line that begins with `word`, and all lines before it."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        if line.startswith(word):
            return json.loads(line.removeprefix(word)), "".join(said)
        said.append(line)
    pytest.fail(f"the engine ended without {word}:\n{''.join(said)[-8000:]}", pytrace=False)


def single_device(engine_run: Callable[..., Any], model: Path) -> list[list[int]]:
    params = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    requests = [{"token_ids": tokens, "params": params} for tokens in PROMPTS]
    report = engine_run({"model": str(model)} | DTYPE, requests, ANVIL_DEVICE_MEMORY="1GiB")
    return [one["completions"][0]["token_ids"] for one in report["outputs"]]


def test_too_few_devices_are_said_at_once(
    hosts: tuple[RayHost, RayHost, dict[str, str]], folder: Path, tiny_llama: Path
) -> None:
    first, further, environment = hosts
    said = refusal(job(folder, tiny_llama, tensor_parallel_size=4), environment)
    assert (
        "ValueError: The engine's 4 ranks need 4 ANVIL devices, and the Ray cluster has 2" in said
    )
    assert "(1 on 127.0.0.2, 1 on 127.0.0.3)" in said
    assert "Waiting for creating a placement group" not in said
    assert not first.ranks() + further.ranks()


def test_two_hosts(
    hosts: tuple[RayHost, RayHost, dict[str, str]],
    folder: Path,
    tiny_llama: Path,
    engine_run: Callable[..., Any],
) -> None:
    """A rank on each host answers as one device does, from graphs; a killed one ends the engine."""
    first, further, environment = hosts
    with program(
        job(folder, tiny_llama, tensor_parallel_size=2),
        environment,
        # Of the host on which the engine is started, and no other; and of all ranks.
        ANVIL_DEVICES="2",
        ANVIL_VISIBLE_DEVICES="0",
        ANVIL_TRITON_OVERRIDES="0",
    ) as process:
        report, said = read_until(process, "ANSWERED")
        assert report["tokens"] == single_device(engine_run, tiny_llama)
        # Prompts may come in a step each; decode steps run no Python of the model.
        assert max(report["forwards"]) <= len(PROMPTS) < TOKENS

        ranks = report["ranks"]
        assert [(one["host"], one["device"]) for one in ranks] == [
            ("127.0.0.2", 0),
            ("127.0.0.3", 1),
        ]
        for one in ranks:
            assert one["torch_threads"] == len(one["cores"])
            assert one["environment"]["ANVIL_VISIBLE_DEVICES"] == str(one["device"])
            assert one["environment"]["ANVIL_TRITON_OVERRIDES"] == "0"
            assert "in another process namespace" in one["fallback_reason"]
        assert "exchanges its data over gloo, which is slower" in said

        (victim,) = further.ranks()
        assert process.stdin is not None and process.stdout is not None
        os.kill(victim, signal.SIGKILL)
        process.stdin.write("\n")
        process.stdin.flush()
        error, said = read_until(process, "ENDED")
        said += process.stdout.read()
        assert "EngineDeadError" in error
        # Ray's word of it, or the other rank's, whichever comes first.
        from_ray = "Rank 1 of the engine has ended: " in said and "ip: 127.0.0.3" in said
        assert from_ray or "rank 1 did not do its part" in said, said
    first.wait_without_ranks()
    further.wait_without_ranks()


@pytest.mark.slow
def test_two_devices_of_one_host(
    tiny_llama: Path, engine_run: Callable[..., Any], tmp_path: Path
) -> None:
    """Ranks on one host have devices of their own and share memory; a second engine, for which no
    device is left, says who has them."""
    sockets = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    host, environment = start_first(sockets, 2, **ONE_OF_TWO)
    try:
        path = job(tmp_path, tiny_llama, tensor_parallel_size=2)
        with program(path, environment) as process:
            report, _ = read_until(process, "ANSWERED")
            assert report["tokens"] == single_device(engine_run, tiny_llama)
            assert [one["device"] for one in report["ranks"]] == [0, 1]
            assert [one["fallback_reason"] for one in report["ranks"]] == ["", ""]
            said = refusal(path, environment)
            assert "others use too many of the Ray cluster's: 2 of 2 on 127.0.0.2" in said
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait() == 0
        host.wait_without_ranks()
    finally:
        host.stop()
        shutil.rmtree(sockets, ignore_errors=True)


@pytest.mark.slow
def test_a_cluster_that_only_counts_devices(tiny_llama: Path, tmp_path: Path) -> None:
    sockets = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    host, environment = start_first(sockets, 1, numbered=False, **ONE_OF_TWO)
    try:
        path = job(tmp_path, tiny_llama, tensor_parallel_size=1)
        said = refusal(path, environment)
        assert "ValueError: The Ray cluster only counts its ANVIL devices" in said
    finally:
        host.stop()
        shutil.rmtree(sockets, ignore_errors=True)
