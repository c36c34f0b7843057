# SPDX-License-Identifier: Apache-2.0
"""Users' implementations of every kind: each is reported as what it is; nothing else suffers."""

import json
import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from anvil_attention.bench import check_process, runner
from anvil_attention.bench.batch_spec import parse
from anvil_attention.bench.checking import Status, check_apart
from anvil_attention.bench.implementations import Candidate, candidates, resolve
from anvil_attention.bench.model_shapes import ModelShape
from anvil_attention.bench.problem import Problem

USERS = """
import ctypes, os, sys, time
import torch
from anvil_attention.contract import Unsupported, attention
from anvil_attention.reference_implementation import attend

def good(**a):
    print("it may print")
    attend(**a)

def one_percent(**a):
    attend(**a)
    a["output"][: int(a["query_start_loc"][-1])] *= 1.01

def wrong_dtype(**a):
    attend(**a)
    a["output"].data = a["output"].double()

def wrong_shape(**a):
    a["output"].copy_(a["query"].flatten(1))

def wrong_layout(**a):
    attend(**a | {"key_cache": a["key_cache"].transpose(0, 1)})

def returns(**a):
    return a["query"] * 1.0

def raises(**a):
    raise ArithmeticError("nothing to add")

def segfaults(**a):
    ctypes.string_at(0)

def segfaults_on_long(**a):
    attend(**a)
    if a["max_seq_len"] > 300:
        ctypes.string_at(0)

def exits(**a):
    print("leaving early", file=sys.stderr)
    os._exit(7)

def hangs(**a):
    time.sleep(600)

def long_refused(**a):
    if a["max_seq_len"] > 300:
        raise Unsupported("sequences beyond 300")
    attend(**a)

refused = attention(good, name="refused", refuses=lambda spec: f"heads of {spec.head_size}")
old = attention(good, name="old", version=0)
number = 5
"""
BROKEN = "import torch\nraise OSError('no licence')\n"
NEEDY = "import a_module_that_is_not_there\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("users")
    (folder / "users_attention.py").write_text(USERS)
    (folder / "broken.py").write_text(BROKEN)
    (folder / "needy.py").write_text(NEEDY)
    return folder


SHAPE = ModelShape("small", 4, 2, 16)


def _problems(device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[Problem]:
    spec = SHAPE.spec(dtype, dtype, 16, device)
    return [Problem("small", spec, parse(batch)) for batch in ("2q1s40_q9", "q1s400")]


@pytest.mark.parametrize(
    ("function", "status", "words"),
    [
        ("users_attention.py:good", Status.PASSED, ""),
        ("users_attention.py:one_percent", Status.WRONG, "wrong values: output["),
        ("users_attention.py:wrong_dtype", Status.WRONG, "torch.float64; it was given as"),
        ("users_attention.py:wrong_shape", Status.RAISED, "RuntimeError: "),
        ("users_attention.py:wrong_layout", Status.RAISED, "Error: "),
        ("users_attention.py:returns", Status.RAISED, "TypeError: attention '"),
        ("users_attention.py:raises", Status.RAISED, "ArithmeticError: nothing to add"),
        ("users_attention.py:refused", Status.REFUSED, "heads of 16"),
        ("users_attention.py:old", Status.MISSING, "was written for version 0"),
        ("users_attention.py:number", Status.MISSING, "it is int, not a function"),
        ("users_attention.py:god", Status.MISSING, "has no 'god'"),
        ("nowhere.py:good", Status.MISSING, "there is no file"),
        ("a_module_that_is_not_there:good", Status.MISSING, "there is no module"),
        ("broken.py:good", Status.MISSING, "OSError: no licence"),
        ("needy.py:good", Status.MISSING, "a_module_that_is_not_there"),
    ],
)
def test_each_is_reported_as_what_it_is(
    folder: Path,
    function: str,
    status: Status,
    words: str,
) -> None:
    name = f"{folder}/{function}" if ".py" in function else function
    messages = [m for m in _messages(name, folder) if "step" not in m]
    assert {message["status"] for message in messages} == {status.value}
    assert len(messages) == (1 if messages[0].get("all") else 2)
    assert words in messages[0]["message"]


def _messages(name: str, folder: Path) -> list[dict]:
    """What the process that checks an implementation tells, without a process."""
    task = folder / "task"
    candidate = asdict(Candidate(name, users=True, named=True))
    task.write_bytes(pickle.dumps((candidate, "cpu", _problems(), 0)))
    with tempfile.TemporaryFile() as file:
        check_process.main(task, file.fileno())
        file.seek(0)
        return [json.loads(line) for line in file]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("segfaults", "by SIGSEGV on small batches of small"),
        ("exits", "with status 7 on small batches of small:\nleaving early"),
    ],
)
def test_one_that_ends_its_process(folder: Path, function: str, words: str) -> None:
    candidate = Candidate(f"{folder}/users_attention.py:{function}", users=True, named=True)
    outcomes = check_apart(candidate, "cpu", _problems())
    assert [outcome.status for outcome in outcomes] == [Status.CRASHED] * 2
    assert words in outcomes[0].message


def test_one_that_hangs_is_ended(folder: Path) -> None:
    candidate = Candidate(f"{folder}/users_attention.py:hangs", users=True, named=True)
    outcomes = check_apart(candidate, "cpu", _problems(), timeout_s=8)
    assert [outcome.status for outcome in outcomes] == [Status.HUNG] * 2
    assert outcomes[0].message == "no answer in 8 s on small batches of small; it was ended"


@pytest.mark.parametrize(
    ("function", "status"),
    [("segfaults_on_long", Status.CRASHED), ("long_refused", Status.REFUSED)],
)
def test_what_passed_before_stays_passed(folder: Path, function: str, status: Status) -> None:
    candidate = Candidate(f"{folder}/users_attention.py:{function}", users=True, named=True)
    outcomes = check_apart(candidate, "cpu", _problems())
    assert [outcome.status for outcome in outcomes] == [Status.PASSED, status]
    if status is Status.CRASHED:
        assert "by SIGSEGV on small q1s400" in outcomes[1].message


def test_on_the_device(folder: Path) -> None:
    candidate = Candidate(f"{folder}/users_attention.py:good", users=True, named=True)
    outcomes = check_apart(candidate, "anvil:0", _problems("anvil"))
    assert [outcome.status for outcome in outcomes] == [Status.PASSED] * 2, outcomes


QUICK = runner.Settings(repeats=2, min_time_s=0.0, pause_s=0.0, memory=1 << 22, timeout_s=60)


def test_the_others_still_run(folder: Path) -> None:
    device = torch.device("cpu")
    users = f"{folder}/users_attention.py"
    names = ["reference", f"{users}:segfaults", f"{users}:good", "sdpa"]
    results = runner.run(_problems(device.type), candidates(names), device, QUICK)
    assert results.names == names
    assert results.baseline == "sdpa"
    for problem in results.problems:
        found = {m.name.rpartition(":")[2]: m for m in problem.measured}
        statuses = {name: m.outcome.status for name, m in found.items()}
        assert statuses == {
            "reference": Status.PASSED,
            "segfaults": Status.CRASHED,
            "good": Status.PASSED,
            "sdpa": Status.PASSED,
        }
        assert {name for name, m in found.items() if m.sample} == {"reference", "good", "sdpa"}
        for name in ("reference", "good", "sdpa"):
            measured = found[name]
            assert measured.sample is not None
            assert len(measured.sample.seconds) == 2
            assert problem.fraction(measured) > 0
            assert problem.ratio(measured, "sdpa") > 0
    assert results.failed(set())
    mean = results.mean_ratio("sdpa")
    assert mean == (1.0, 2)


def test_built_in_ones_agree_with_the_reference(device: torch.device) -> None:
    spec = ModelShape("small", 4, 2, 32).spec(torch.bfloat16, torch.bfloat16, 32, device.type)
    problems = [Problem("small", spec, parse("2q1s40_q9_q5s70"))]
    results = runner.run(problems, candidates(["reference", "sdpa", "engine"]), device, QUICK)
    for measured in results.problems[0].measured:
        # The engine is not part of every environment.
        assert measured.outcome.status in (Status.PASSED, Status.UNAVAILABLE), measured
        assert measured.name == "engine" or measured.outcome.status is Status.PASSED


def test_one_that_spoils_its_inputs_spoils_nobody_elses(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    """Even one of Anvil's own, which runs in this process."""
    from anvil_attention import resolve as resolving
    from anvil_attention.contract import AttentionImplementation
    from anvil_attention.reference_implementation import attend

    def spoils(**a) -> None:
        attend(**a)
        if a["max_seq_len"] > 300:
            a["query"].zero_()
            a["key_cache"].zero_()

    spoiling = AttentionImplementation(name="triton", function=spoils)
    monkeypatch.setitem(resolving.OWN, "triton", lambda: spoiling)
    results = runner.run(
        _problems(device.type)[1:], candidates(["triton", "reference", "sdpa"]), device, QUICK
    )
    statuses = [m.outcome.status for m in results.problems[0].measured]
    assert statuses == [Status.WRONG, Status.PASSED, Status.PASSED]


def test_wrong_only_at_full_speed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from anvil_attention import resolve as resolving
    from anvil_attention.contract import AttentionImplementation
    from anvil_attention.reference_implementation import attend

    calls = []

    def tires(**a) -> None:
        attend(**a)
        if a["max_seq_len"] > 300:
            calls.append(1)
            if len(calls) > 2:
                a["output"].mul_(1.02)

    tiring = AttentionImplementation(name="triton", function=tires)
    monkeypatch.setitem(resolving.OWN, "triton", lambda: tiring)
    results = runner.run(
        _problems()[1:], candidates(["triton", "reference"]), torch.device("cpu"), QUICK
    )
    triton, reference = results.problems[0].measured
    assert triton.outcome.status is Status.WRONG
    assert triton.outcome.message.startswith("after the timed runs: ")
    assert triton.sample is None
    assert reference.sample is not None


def test_problems_beyond_memory_are_said_to_be(device: torch.device) -> None:
    settings = runner.Settings(repeats=1, memory=1 << 12)
    results = runner.run(_problems(device.type), candidates(["reference"]), device, settings)
    [measured] = results.problems[0].measured
    assert measured.outcome.status is Status.TOO_LARGE
    assert "(--memory)" in measured.outcome.message
    assert results.failed(set())


def test_names() -> None:
    with pytest.raises(ValueError, match=r"no implementation 'tritton' \(is triton meant\?\)"):
        candidates(["tritton"])
    assert [c.name for c in candidates([])][:5] == [
        "native",
        "reference",
        "triton",
        "sdpa",
        "engine",
    ]
    assert candidates(["sdpa", "x:y", "sdpa"]) == [
        Candidate("sdpa", users=False, named=True),
        Candidate("x:y", users=True, named=True),
    ]


def test_an_installed_entry_point_is_one_of_them(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution = tmp_path / "fast_attention-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: fast-attention\n")
    (distribution / "entry_points.txt").write_text(
        "[vllm_anvil.attention_impls]\nfast = users_attention:good\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(folder)
    assert candidates([])[-1] == Candidate("fast", users=True, named=False)
    [candidate] = candidates(["fast"])
    assert resolve(candidate, torch.device("cpu")).name == "fast"
    outcomes = check_apart(candidate, "cpu", _problems())
    assert [outcome.status for outcome in outcomes] == [Status.PASSED] * 2


def test_triton_is_made_ready_for_the_device() -> None:
    """In a process that has not imported it before."""
    pytest.importorskip("anvil_attention.triton_kernels")
    script = (
        "import torch\n"
        "from anvil_attention.bench.devices import open_device\n"
        "from anvil_attention.bench.implementations import candidates, resolve\n"
        "from anvil_attention.bench.model_shapes import model_shape\n"
        "from anvil_attention.verification import verify\n"
        "device = open_device('anvil')\n"
        "spec = model_shape('smollm2').spec(torch.bfloat16, torch.bfloat16, 16, 'anvil')\n"
        "verify(resolve(candidates(['triton'])[0], device), spec, device)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
