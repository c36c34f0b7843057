# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil parity`: exit statuses, reports, users' op tables, crashes, instruction sets."""

import base64
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import vllm_anvil.device  # noqa: F401  registers torch.anvil
from vllm_anvil.cli import parity as command
from vllm_anvil.testing import registry

TABLE = """
import ctypes, os, time
import torch
from vllm_anvil.testing.op_case import Case, Op

def double(x):
    return x * 2

def off(x):
    return x * 2.02

def crash(x):
    if len(x) == 3:
        ctypes.string_at(0)
    return x * 2

def leave(x):
    os._exit(7)

def wait(x):
    if len(x) == 5:
        open(os.environ["WAITING"], "w").close()
        time.sleep(60)
    return x * 2

def cases(*rows):
    return tuple(
        Case(f"rows{n}", lambda inputs, n=n: {"x": inputs.normal(n, 5)}) for n in rows
    )

def op(call, *rows):
    return Op(call.__name__, "user", double, cases(*rows), namespace="user", call=call,
              views=("x",), batch={"x": 0, "result": 0})

OPS = [op(crash, 1, 3, 4), op(double, 0, 1, 4), op(off, 4), op(leave, 1, 2, 3)]
SLOW = [op(wait, 1, 2, 5, 6)]
"""


@dataclass
class Done:
    status: int
    output: str
    errors: str


@dataclass
class Machine:
    """Runs the command where a package with op tables of a user's is installed."""

    folder: Path

    def install(self, *tables: str) -> None:
        info = self.folder / "mine-1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
        lines = [f"[{registry.GROUP}]", *(f"t{i} = {table}" for i, table in enumerate(tables))]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        (self.folder / "mine_ops.py").write_text(TABLE)
        (self.folder / "mine_broken.py").write_text("import nothing_of_this_name\n")

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        roots = [str(self.folder), *(path for path in sys.path if path)]
        environment = {name: v for name, v in os.environ.items() if name != "ANVIL_ISA"}
        return subprocess.Popen(
            [sys.executable, "-m", "vllm_anvil.cli", "parity", *arguments],
            env=environment | {"PYTHONPATH": os.pathsep.join(roots), "COLUMNS": "200"} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A suite in the background of a shell ignores it, and so would what it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments: str) -> Done:
        child = self.start(*arguments)
        output, errors = child.communicate(timeout=300)
        return Done(child.returncode, output, errors)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    made = Machine(tmp_path_factory.mktemp("user"))
    made.install("mine_ops:OPS", "mine_broken:OPS")
    return made


@pytest.fixture(scope="module")
def slow_machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    made = Machine(tmp_path_factory.mktemp("slow"))
    made.install("mine_ops:SLOW")
    return made


USERS = ("--op", "crash", "--op", "double", "--op", "off", "--op", "user::leave")


@pytest.fixture(scope="module")
def whole_run(machine: Machine) -> tuple[Done, dict[str, Any], str]:
    """All ops of the user's, good, wrong and deadly: what was printed, the JSON, the page."""
    files = (machine.folder / "found.json", machine.folder / "found.html")
    done = machine.run(
        *("--device", "cpu", *USERS, "--json", str(files[0]), "--html", str(files[1]))
    )
    assert done.status == 1, done
    return done, json.loads(files[0].read_text()), files[1].read_text()


def results(document: dict[str, Any], op: str) -> list[dict[str, Any]]:
    return [result for result in document["runs"][0]["results"] if result["op"] == f"user::{op}"]


def test_a_crash_is_the_ops_and_the_rest_goes_on(whole_run: tuple[Done, Any, str]) -> None:
    done, document, _ = whole_run
    (crashed,) = [result for result in results(document, "crash") if not result["passed"]]
    assert crashed["case"] == "rows3"
    assert crashed["problem"] == "the process died: killed by SIGSEGV"
    assert {result["case"] for result in results(document, "crash")} == {"rows1", "rows3", "rows4"}
    assert "user::crash, rows3, contiguous: the process died: killed by SIGSEGV" in done.output
    assert all(result["passed"] for result in results(document, "double"))


def test_an_op_that_keeps_dying_is_given_up(whole_run: tuple[Done, Any, str]) -> None:
    _, document, _ = whole_run
    died = results(document, "leave")
    assert [result["case"] for result in died] == ["rows1", "rows2"]
    assert died[0]["problem"] == "the process died: exit status 7"
    assert died[-1]["problem"].endswith("; its other cases are left out")


def test_the_terminal_names_what_is_wrong(whole_run: tuple[Done, Any, str]) -> None:
    done, _, _ = whole_run
    assert re.search(r"user::double\s*│ the table's call │\s*3 │\s*\d+ │\s*exact │ ok", done.output)
    assert re.search(r"user::off, rows4, contiguous: result: element \[\d, \d\] is ", done.output)
    assert (
        "op table mine_broken:OPS of mine: ModuleNotFoundError: No module named "
        "'nothing_of_this_name'" in done.output
    )


def test_the_json_has_every_result(whole_run: tuple[Done, Any, str]) -> None:
    _, document, _ = whole_run
    assert document["passed"] is False
    assert document["request"]["device"] == "cpu"
    (run,) = document["runs"]
    assert run["isa"] in ("scalar", "avx2", "avx512", "avx512_bf16")
    assert run["implementations"]["user::double"] == "the table's call"
    assert run["distributions"]["user::double"] == "mine"
    assert [p["table"] for p in run["problems"] if p["distribution"] == "mine"] == [
        "mine_broken:OPS"
    ]
    worst = max(r["comparisons"]["result"]["worst"] for r in results(document, "off"))
    assert worst > 1000


def test_the_page_needs_nothing_else(whole_run: tuple[Done, Any, str]) -> None:
    _, _, page = whole_run
    images = re.findall(r"src='data:image/png;base64,([^']+)'", page)
    assert len(images) == 4
    assert all(base64.b64decode(image).startswith(b"\x89PNG") for image in images)
    assert "user::crash, rows3, contiguous: the process died" in page
    assert not re.search(r"(src|href)='(?!data:|#)", page)


def test_all_passed(slow_machine: Machine) -> None:
    done = slow_machine.run("--device", "cpu", "--op", "wait", "-k", "rows1", "--json", "-")
    document = json.loads(done.output)
    assert [p for p in document["runs"][0]["problems"] if p["distribution"] == "mine"] == []
    assert {result["case"] for result in document["runs"][0]["results"]} == {"rows1"}
    assert "1 ops, 3 calls, 0 failed" in done.errors
    assert document["passed"] is (not document["runs"][0]["problems"])
    assert done.status == (0 if document["passed"] else 1)


def test_an_instruction_set_is_asserted_active(slow_machine: Machine) -> None:
    done = slow_machine.run(
        *("--device", "anvil", "--isa", "scalar", "--op", "wait", "-k", "rows2", "--json", "-")
    )
    (run,) = json.loads(done.output)["runs"]
    assert run["isa"] == "scalar"
    assert run["results"]
    assert "anvil, scalar" in done.errors


def test_interrupted_it_reports_what_ran(slow_machine: Machine, tmp_path: Path) -> None:
    waiting, found = tmp_path / "waiting", tmp_path / "found.json"
    child = slow_machine.start(
        *("--device", "cpu", "--op", "wait", "--json", str(found)), WAITING=str(waiting)
    )
    while not waiting.exists():
        assert child.poll() is None, child.communicate()
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 130, output + errors
    assert "Interrupted" in output
    document = json.loads(found.read_text())
    assert document["passed"] is False
    assert document["runs"][0]["interrupted"] is True
    assert {r["case"] for r in document["runs"][0]["results"]} == {"rows1", "rows2"}


def test_replays_a_recording(slow_machine: Machine, tmp_path: Path) -> None:
    recording = pytest.importorskip("vllm_anvil.testing.recording")
    x = torch.randn(3, 40)
    arguments = {"input": x, "weight": torch.randn(7, 40).bfloat16(), "bias": None}
    exact = x.double() @ arguments["weight"].double().T
    calls = tuple(
        recording.RecordedCall("linear", arguments, {"result": (exact * factor).float()})
        for factor in (1.0, 1.01)
    )
    recorded = tmp_path / "step.pt"
    recording.Recording({"device": "anvil"}, calls).save(recorded)
    done = slow_machine.run("--device", "cpu", "--replay", str(recorded), "--json", "-")
    assert done.status == 1, done.errors
    (run,) = json.loads(done.output)["runs"]
    assert [(r["case"], r["variant"], r["passed"]) for r in run["results"]] == [
        ("call 0", "contiguous", True),
        ("call 0", "recorded", True),
        ("call 1", "contiguous", True),
        ("call 1", "recorded", False),
    ]
    recorded.write_bytes(b"nothing of the kind")
    done = slow_machine.run("--device", "cpu", "--replay", str(recorded))
    assert done.status == 2
    assert re.search(r"^Error: .*step.pt cannot be replayed: ", done.errors), done.errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "cpu", "--op", "nothing"), r"there is no op 'nothing'; there are .*double, "),
        (("--device", "cpu", "-k", "no case has this"), "no case has 'no case has this'"),
        (("--device", "toaster"), "the device 'toaster' cannot be used"),
        (("--isa", "sse9"), r"--isa sse9: .* choose one of .*scalar, or all"),
        (("--device", "meta", "--isa", "all"), "--isa is for anvil and cpu; meta has no"),
        (("--json", "/nowhere/file"), "--json /nowhere/file: there is no folder /nowhere"),
        (("--replay", "/nowhere/file"), "--replay /nowhere/file: there is no such file"),
    ],
)
def test_requests_that_are_wrong(machine: Machine, arguments: tuple[str, ...], words: str) -> None:
    done = machine.run(*arguments)
    assert done.status == 2, done
    assert re.search(f"^Error: .*{words}", done.errors, re.MULTILINE), done.errors
    assert done.output == ""


def test_a_page_without_matplotlib(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name)
    )
    assert command.run(command.Request("cpu", html="page.html")) == 2
    assert "pip install 'vllm-anvil[bench]'" in capsys.readouterr().err
