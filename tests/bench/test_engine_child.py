# SPDX-License-Identifier: Apache-2.0
"""What one run times, with an engine that only counts."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from vllm_anvil.bench import engine_child
from vllm_anvil.bench.engine_child import Requests, draw_prompts, measure, peak_memory


@dataclass
class Completion:
    token_ids: list[int]


@dataclass
class Output:
    request_id: str
    outputs: list[Completion]


class CountingEngine:
    """Gives each request a token a step, the n-th request from step n // `admitted` on.

    Args:
        clock: told how long each step took: 2 s for the first token of a request, else 1 s.
    """

    def __init__(self, clock: list[float], admitted: int = 100) -> None:
        self.clock, self.admitted = clock, admitted
        self.waiting: list[str] = []
        self.left: dict[str, int] = {}
        self.prompts: dict[str, list[int]] = {}

    def add_request(self, name: str, prompt: dict[str, list[int]], params: Any) -> None:
        assert params.ignore_eos and params.temperature == 0
        assert name not in self.prompts
        self.prompts[name] = prompt["prompt_token_ids"]
        self.left[name] = params.max_tokens
        self.waiting.append(name)

    def has_unfinished_requests(self) -> bool:
        return bool(self.left)

    def step(self) -> list[Output]:
        new, self.waiting = self.waiting[: self.admitted], self.waiting[self.admitted :]
        self.clock[0] += 2.0 if new else 1.0
        outputs = []
        for name in [name for name in self.left if name not in self.waiting]:
            outputs.append(Output(name, [Completion([self.left[name]])]))
            self.left[name] -= 1
            if not self.left[name]:
                del self.left[name]
        return outputs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(engine_child.time, "perf_counter", lambda: now[0])
    return now


def test_steps_are_timed_while_all_requests_decode(clock: list[float]) -> None:
    requests = Requests(CountingEngine(clock), "a", [[1], [2], [3]], 10)
    assert requests.tokens == [list(range(10, 0, -1))] * 3
    assert requests.first_tokens() == 2.0
    assert requests.steady_steps() == [1.0] * (10 - 1 - engine_child.SETTLING_STEPS)


def test_requests_that_are_admitted_later(clock: list[float]) -> None:
    """Steps that prefill, and those after the first request's end, decode no whole batch."""
    requests = Requests(CountingEngine(clock, admitted=1), "a", [[1], [2], [3]], 10)
    assert requests.first_tokens() == 6.0
    steady = requests.steady_steps()
    assert set(steady) == {1.0}
    # The last request has 8 tokens when the first one ends.
    assert len(steady) == 8 - 1 - engine_child.SETTLING_STEPS


def test_no_steady_step(clock: list[float]) -> None:
    with pytest.raises(RuntimeError, match="no step of 3 requests with 5 new tokens each was stea"):
        Requests(CountingEngine(clock, admitted=1), "a", [[1], [2], [3]], 5).steady_steps()


def test_a_scenario_is_warmed_up_with_other_prompts(clock: list[float]) -> None:
    engine = CountingEngine(clock)
    decode = {"name": "d", "kind": "decode", "batch": 2, "prompt": 40, "tokens": 12}
    found = measure(engine, decode, "0/0", 1000)
    assert found["seconds"] == 1.0 and len(found["tokens"]) == 2
    prefill = {"name": "p", "kind": "prefill", "batch": 2, "prompt": 40, "tokens": 1}
    assert measure(engine, prefill, "0/0", 1000)["seconds"] == 2.0
    prompts = [tuple(prompt) for prompt in engine.prompts.values()]
    assert len(set(prompts)) == len(prompts) == 8
    assert [len(prompt) for prompt in prompts] == [32, 32, 40, 40, 40, 40, 40, 40]


def test_prompts_depend_on_the_seed_alone() -> None:
    assert draw_prompts("a", 2, 50, 97) == draw_prompts("a", 2, 50, 97)
    first, second = draw_prompts("a", 2, 50, 97)
    assert first != second and first != draw_prompts("b", 1, 50, 97)[0]
    assert set(first + second) <= set(range(97))


def test_the_peak_counts_every_process_of_the_session() -> None:
    code = f"""
import os, runpy, subprocess, sys
block = bytearray(64 << 20)
del block  # a peak is no present
other = "block = bytearray(32 << 20); print(1, flush=True); input()"
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child = subprocess.Popen([sys.executable, "-c", other], **pipes)
child.stdout.readline()
found = runpy.run_path({engine_child.__file__!r})["peak_memory"]()
child.communicate(b"\\n")
print(found[str(os.getpid())], found[str(child.pid)], len(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, start_new_session=True
    )
    own, other, processes = map(int, done.stdout.split())
    assert own > 64 << 20 and 32 << 20 < other < 64 << 20 and processes == 2
    assert peak_memory()  # and in this one


def test_imports_nothing_of_this_package() -> None:
    tree = ast.parse(Path(engine_child.__file__).read_text())
    names = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or "."]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names - sys.stdlib_module_names == {"torch", "vllm"}


def test_report_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Whoever reads it while it is written finds the one before."""
    report = engine_child.Report(str(tmp_path / "result.json"))
    numbers = count()
    for _ in range(3):
        report.add("counting", number=next(numbers))
    assert list(tmp_path.iterdir()) == [tmp_path / "result.json"]
    assert report.found == {"doing": "counting", "number": 2}
