# SPDX-License-Identifier: Apache-2.0
"""Every Triton kernel of the installed engine is known, and what is said about it is true."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from vllm_anvil.plugin.triton_inventory import compilation, discovery, inventory
from vllm_anvil.plugin.triton_inventory.discovery import TritonFunction
from vllm_anvil.plugin.triton_inventory.inventory import Record, State
from vllm_anvil.plugin.triton_inventory.refused import REFUSED

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = len(os.sched_getaffinity(0))
RECORD_ANEW = "python tools/triton_inventory.py records it; add what it needs to specimens/"


@pytest.fixture(scope="module")
def kernels() -> list[TritonFunction]:
    return discovery.kernels(discovery.package_root("vllm"), "vllm")


def test_every_kernel_of_the_engine_is_known(kernels: list[TritonFunction]) -> None:
    entries = inventory.entries(kernels, inventory.recorded())
    unknown = [entry.kernel for entry in entries if entry.state is State.UNKNOWN]
    assert not unknown, RECORD_ANEW


def test_nothing_is_said_about_kernels_that_are_gone(kernels: list[TritonFunction]) -> None:
    assert not inventory.stale(kernels, inventory.recorded())


def test_the_record_is_of_the_installed_engine() -> None:
    assert inventory.recorded().engine == inventory.engine_version()


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A package like the engine, with each kind of Triton function."""
    root = tmp_path / "vllm"
    (root / "ops").mkdir(parents=True)
    (root / "ops/__init__.py").write_text("")
    (root / "ops/kernels.py").write_text(
        textwrap.dedent("""\
            import triton
            from triton import jit as compiled

            @triton.jit
            def called(x):
                return x

            @triton.jit
            def launched_elsewhere(x_ptr, BLOCK: tl.constexpr, n=1):
                called(x_ptr)

            @triton.autotune(configs=[], key=[])
            @triton.jit(do_not_specialize=["n"])
            def tuned(x_ptr, n):
                called(x_ptr)

            @compiled
            def never_called(x_ptr):
                launched_elsewhere(x_ptr)

            class Kernel:
                @staticmethod
                @triton.jit
                def kernel(x_ptr):
                    pass

            def factory():
                @triton.jit
                def local(x_ptr):
                    pass

            @other.jit
            def not_triton(x):
                pass
            """)
    )
    (root / "launches.py").write_text(
        textwrap.dedent("""\
            import triton  # its jit
            from .ops.kernels import launched_elsewhere as kernel

            def launch(x):
                kernel[(1,)](x, BLOCK=64)
            """)
    )
    return root


def test_which_functions_are_kernels(engine: Path) -> None:
    functions = {f.qualname: f for f in discovery.triton_functions(engine, "vllm")}
    assert {name: function.launchable for name, function in functions.items()} == {
        "called": False,
        "launched_elsewhere": True,
        "tuned": True,
        "never_called": True,
        "Kernel.kernel": True,
        "factory.<locals>.local": True,
    }
    launched = functions["launched_elsewhere"]
    assert launched.name == "vllm.ops.kernels:launched_elsewhere"
    assert (launched.file, launched.line) == ("vllm/ops/kernels.py", 9)
    assert launched.arguments == ("x_ptr", "BLOCK", "n")
    assert launched.constexprs == ("BLOCK",)
    assert launched.defaults == ("n",)
    (launch,) = launched.launches
    assert len(launch.positional) == 1 and set(launch.named) == {"BLOCK"}


def test_an_unknown_kernel_and_a_stale_record_are_noticed(engine: Path) -> None:
    found = discovery.kernels(engine, "vllm")
    record = Record(
        engine="0",
        reasons={"vllm.ops.kernels:tuned": "", "vllm.ops.kernels:gone": ""},
        overridden=frozenset({"vllm.ops.kernels:Kernel.kernel"}),
        checked=frozenset({"vllm.ops.kernels:tuned", "vllm.ops.kernels:never"}),
    )
    states = {entry.kernel: entry.state for entry in inventory.entries(found, record)}
    assert states == {
        "vllm.ops.kernels:launched_elsewhere": State.UNKNOWN,
        "vllm.ops.kernels:tuned": State.CHECKED,
        "vllm.ops.kernels:never_called": State.UNKNOWN,
        "vllm.ops.kernels:Kernel.kernel": State.OVERRIDDEN,
        "vllm.ops.kernels:factory.<locals>.local": State.UNKNOWN,
    }
    stale = inventory.stale(found, record)
    assert "vllm.ops.kernels:gone is recorded" in stale
    assert "vllm.ops.kernels:never is checked" in stale


def test_a_kernel_that_ends_its_process_ends_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_worker.py").write_text(
        textwrap.dedent("""\
            import json, os, signal, sys

            answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
            print(json.dumps({"overridden": ["a.b"]}), file=answers)
            for line in sys.stdin:
                if line.strip() == "crashes":
                    os.kill(os.getpid(), signal.SIGSEGV)
                if line.strip() == "exits":
                    sys.exit("no more memory")
                reason = f"{sys.argv[2]} refused" if line.strip() == "fails" else ""
                print(json.dumps({"reason": reason, "seconds": 0.5}), file=answers)
            """)
    )
    monkeypatch.setattr(compilation, "WORKER", "failing_worker")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    names = ["good", "crashes", "fails", "exits", *(f"better {number}" for number in range(20))]
    told: list[str] = []
    done = compilation.compile_all(names, 2, "ttir", lambda result: told.append(result.kernel))
    assert {result.kernel: result.reason for result in done.results} == {
        "good": "",
        "crashes": "the compiler ended with SIGSEGV",
        "fails": "ttir refused",
        "exits": "the compiler's process ended with status 1: no more memory",
        **dict.fromkeys(names[4:], ""),
    }
    assert sorted(told) == sorted(names)
    assert done.overridden == ["a.b"]


@pytest.mark.slow  # three minutes; what is launched by an engine is compiled by other tests
def test_specimens_are_launches_that_triton_accepts(kernels: list[TritonFunction]) -> None:
    names = [kernel.name for kernel in kernels if kernel.name not in REFUSED]
    done = compilation.compile_all(names, PROCESSES, "ttir")
    assert sorted(result.kernel for result in done.results) == sorted(names)
    assert not {result.kernel: result.reason for result in done.results if result.reason}
    assert frozenset(done.overridden) == inventory.recorded().overridden


def test_refused_kernels_do_not_compile() -> None:
    done = compilation.compile_all(REFUSED, 1)
    assert not [result.kernel for result in done.results if not result.reason]


@pytest.mark.slow
def test_the_record_is_what_the_compiler_says(kernels: list[TritonFunction]) -> None:
    record = inventory.recorded()
    names = [kernel.name for kernel in kernels if kernel.name not in REFUSED]
    done = compilation.compile_all(names, PROCESSES)
    failing = {result.kernel for result in done.results if result.reason}
    assert failing == {kernel for kernel, reason in record.reasons.items() if reason}, RECORD_ANEW


def test_pages_and_records_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/generate_docs.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_records_are_sorted_so_that_changes_show() -> None:
    for path in (inventory.RECORD, inventory.CHECKED):
        data = json.loads(path.read_text())
        lists = [data] if isinstance(data, list) else [data["compiled"], list(data["failing"])]
        assert all(values == sorted(values) for values in lists)
