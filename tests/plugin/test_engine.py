# SPDX-License-Identifier: Apache-2.0
"""The engine on the device: in this process's child, in the engine's own process, and served."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

GENERATE = """
import json, sys
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    llm = LLM(
        sys.argv[1],
        max_model_len=256,
        max_num_batched_tokens=64,
        max_num_seqs=8,
        seed=0,
        **json.loads(sys.argv[2]),
    )
    prompts = [
        {"prompt_token_ids": [(i * 7 + n) % 250 + 2 for i in range(n)]} for n in (200, 5, 33)
    ]
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    outputs = llm.generate(prompts, greedy, use_tqdm=False)
    print("TOKENS", json.dumps([list(o.outputs[0].token_ids) for o in outputs]))

    import psutil
    children = psutil.Process().children(recursive=True)
    engine = [p for p in children if "EngineCore" in " ".join(p.cmdline())]
    assert engine, "the engine has a process of its own"
    del llm
    _, alive = psutil.wait_procs(engine, timeout=10)
    print("ENGINE GONE" if not alive else f"STILL THERE {alive}")
"""


@pytest.fixture(scope="module")
def engines(
    tiny_model: Path,
    python: Any,
    tmp_path_factory: pytest.TempPathFactory,
    at_once: Callable[..., Any],
) -> Mapping[str, Future[Any]]:
    """What the engines of this module give, by where they run."""
    calls = {
        "own process": functools.partial(generate, options={}, **python.BESIDE_OTHERS),
        "child": lambda python, folder, model: report_of(python, model),
        "server": serve,
    }
    return at_once(
        {
            name: functools.partial(call, python, tmp_path_factory.mktemp("engine"), tiny_model)
            for name, call in calls.items()
        }
    )


@pytest.fixture(scope="module")
def report(engines: Mapping[str, Future[Any]]) -> dict[str, Any]:
    return engines["child"].result()


def report_of(python: Any, model: Path) -> dict[str, Any]:
    program = Path(__file__).with_name("engine_report.py")
    result = python.run(str(program), str(model), **python.BESIDE_OTHERS)
    assert result.returncode == 0, result.stdout + result.stderr
    line = next(x for x in result.stdout.splitlines() if x.startswith("REPORT "))
    return {**json.loads(line.removeprefix("REPORT ")), "log": result.stdout + result.stderr}


def test_who_runs(report: dict[str, Any]) -> None:
    assert report["worker"] == "AnvilWorker"
    assert report["runner"] == "AnvilModelRunner"
    assert report["device"] == "anvil:0"
    assert report["backends"] == ["ANVIL_ATTN"]
    assert report["weights"] == report["cache"] == ["anvil:0"]
    # The worker says so itself.
    assert "AnvilWorker on device=anvil:0" in report["log"]
    assert "model runner V2 (AnvilModelRunner)" in report["log"]


def test_garbage_is_left_to_itself_at_exit(report: dict[str, Any]) -> None:
    (left,) = re.findall(r"^LEFT TO ITSELF (\d+)$", report["log"], re.MULTILINE)
    assert int(left) > 100_000


def test_threads_of_fallback_ops(report: dict[str, Any]) -> None:
    assert report["threads"] == report["cores"]


def test_memory_is_profiled_and_tagged(report: dict[str, Any]) -> None:
    assert 0 < report["kv_bytes"] <= report["available"] < report["requested"]
    assert report["requested"] <= report["total"]
    assert report["peak_activation"] > 0
    for tag in ("weights", "kv_cache"):
        assert tag in report["tags"]


def test_greedy_tokens_do_not_depend_on_the_batch(report: dict[str, Any]) -> None:
    assert report["first"] == report["again"] == report["alone"] == report["after"]
    assert all(len(tokens) == 8 for tokens in report["first"])


def test_prefix_is_found_in_the_cache(report: dict[str, Any]) -> None:
    assert report["cached"] >= 128


def test_longest_request_completes(report: dict[str, Any]) -> None:
    assert report["longest"] == 56


def test_sampling_with_a_seed_repeats(report: dict[str, Any]) -> None:
    assert report["seeded"]


def test_structured_output_beside_plain_requests(report: dict[str, Any]) -> None:
    assert report["chosen"] in ("yes", "no")
    assert report["beside"] == [report["first"][2]] * 2


def test_calls_by_name(report: dict[str, Any]) -> None:
    assert report["health"] == [None]
    assert "generate" in report["tasks"][0]
    assert report["layouts"][0]
    for call in (
        "set_layout",
        "update_max_model_len",
        "reset_encoder_cache",
        "initialize_cache",
        "dummy_batch",
    ):
        assert report[call] == [None], call


def test_shutdown_gives_the_memory_back(report: dict[str, Any]) -> None:
    assert report["held_after_shutdown"] < report["kv_bytes"] / 100


def generate(
    python: Any, folder: Path, model: Path, options: dict[str, Any], **environ: str
) -> tuple[list[list[int]], str]:
    """Tokens and log of a program whose engine runs in processes of its own.

    The engine must end when `LLM` goes out of scope and the program then by itself, with nothing
    left behind.
    """
    program, log = folder / "generate.py", folder / "log"
    program.write_text(GENERATE)
    process = python.start(str(program), str(model), json.dumps(options), log=log, **environ)
    try:
        process.wait(timeout=180)
    finally:
        process.kill()
    said = log.read_text()
    assert process.returncode == 0, said
    assert "ENGINE GONE" in said
    assert python.left_behind(process.pid) == []
    line = next(x for x in said.splitlines() if x.startswith("TOKENS "))
    return json.loads(line.removeprefix("TOKENS ")), said


def test_engine_in_its_own_process(
    engines: Mapping[str, Future[Any]], report: dict[str, Any]
) -> None:
    tokens, said = engines["own process"].result()
    assert tokens == report["first"]
    assert "EngineCore" in said


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two devices need two cores")
def test_one_model_on_two_devices(tiny_model: Path, tmp_path: Path, python: Any) -> None:
    """Tensor parallel: each rank on a device of its own, decode steps from graphs with their
    collectives, and the tokens of one device. In float32, since a sum over two devices rounds
    differently."""
    one, _ = generate(python, tmp_path, tiny_model, {"dtype": "float32"})
    options = {"dtype": "float32", "tensor_parallel_size": 2}
    two, said = generate(python, tmp_path, tiny_model, options, ANVIL_DEVICES="2")
    assert two == one
    for device in ("anvil:0", "anvil:1"):
        assert f"AnvilWorker on device={device}" in said
    assert "Graph capturing finished" in said
    eager, _ = generate(
        python, tmp_path, tiny_model, options | {"enforce_eager": True}, ANVIL_DEVICES="2"
    )
    assert two == eager


def test_served(engines: Mapping[str, Future[Any]], report: dict[str, Any]) -> None:
    assert engines["server"].result() == report["first"][1]


def serve(python: Any, folder: Path, model: Path) -> list[int]:
    """The tokens of one completion over HTTP. SIGTERM must end the server and its engine."""
    port, log = free_port(), folder / "log"
    server = python.start(
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        str(model),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "256"),
        log=log,
        **python.BESIDE_OTHERS,
    )
    try:
        wait_until_ready(server, port, log)
        body = {
            "model": str(model),
            "prompt": [(i * 7 + 5) % 250 + 2 for i in range(5)],
            "max_tokens": 8,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            choice = json.load(answer)["choices"][0]
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=10)
        assert python.left_behind(server.pid) == []
        return choice["token_ids"]
    finally:
        for pid in python.processes_of(server.pid):
            os.kill(pid, signal.SIGKILL)


def wait_until_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(180):
        assert server.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(1)
    raise AssertionError(log.read_text())


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
