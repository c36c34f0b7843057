# SPDX-License-Identifier: Apache-2.0
"""Models for every test: a real one and a tiny random one, as folders; and the offline setting.

The models are made by processes of their own, so that this one has imported neither torch nor
transformers unless a test does.
"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

from surface_record import (  # noqa: F401  hooks
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_runtest_logreport,
    pytest_sessionfinish,
)

ROOT = Path(__file__).resolve().parent.parent
ANVIL_FILES = ("vllm_anvil", "anvil_attention", "anvil_communicator", "__editable__")

# No test may look for a model on a hub; subprocesses inherit it.
os.environ["HF_HUB_OFFLINE"] = "1"

# Where the process that runs the suite, and none that its tests start, notes which test it has
# begun: what ends it without Python's help does not say where. `make test` reads it then.
LAST_TEST = ROOT / "build" / "last_test"
OWN = str(os.getpid())
SUITE = os.environ.setdefault("TEST_SUITE_PROCESS", OWN) == OWN


def pytest_runtest_logstart(nodeid: str) -> None:
    if SUITE and LAST_TEST.parent.is_dir():
        LAST_TEST.write_text(nodeid)


def run_tool(script: str, *arguments: str | Path) -> str:
    """Run tools/`script` in a fresh process and return the last line it prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / script), *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        pytest.fail(f"tools/{script} failed:\n{done.stdout}{done.stderr}", pytrace=False)
    return (done.stdout.strip().splitlines() or [""])[-1]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct in bfloat16; downloaded and converted when missing.

    Beware of near ties: after "What is the capital of France?" the first token leads by 0.1 in
    float32, and the other leads elsewhere. "... Answer in one sentence." leads to Paris by 0.8.
    """
    return Path(run_tool("demo_model.py"))


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, which embeds sentences; downloaded when missing."""
    return Path(run_tool("embedding_model.py"))


@pytest.fixture(scope="session")
def tiny_llama(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a two-layer Llama with random float32 weights and SmolLM2's tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    run_tool("tiny_model.py", folder, smollm2)
    return folder


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with all installed distributions but Anvil: an environment of links."""
    environment = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = str(environment / "bin" / "python")
    probe = "import sysconfig; print(sysconfig.get_path('purelib'))"
    target = Path(subprocess.check_output([python, "-c", probe], text=True).strip())
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(ANVIL_FILES):
            (target / entry.name).symlink_to(entry)
    absent = (
        "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm_anvil') is not None)"
    )
    subprocess.run([python, "-I", "-c", absent], check=True)
    return python


AtOnce = Callable[[Mapping[Any, Callable[[], Any]]], Mapping[Any, Future[Any]]]


@pytest.fixture(scope="module")
def at_once() -> Iterator[AtOnce]:
    """`at_once(calls)` starts calls that wait for processes of their own, as many at a time as
    there are cores, and gives their futures by the same names.

    Most of the time of such a process one thread imports and loads. Where several compute after
    all, their threads must sleep while they wait, or they take the cores from one another; and an
    engine that measures what memory is free must not see others come and go.
    """
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_WAIT_POLICY", "passive")
        patch.setenv("ANVIL_DEVICE_MEMORY", os.environ.get("ANVIL_DEVICE_MEMORY", "3GiB"))
        yield lambda calls: {name: pool.submit(call) for name, call in calls.items()}
        pool.shutdown(cancel_futures=True)
