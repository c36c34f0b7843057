# SPDX-License-Identifier: Apache-2.0
"""vLLM's own Triton kernels against references in NumPy and plain torch.

The kernels are launched as the engine launches them, through vLLM's Python functions where there
are such. They run on the anvil device, or on CPU tensors with ANVIL_TRITON_TEST_DEVICE=cpu. With
TRITON_INTERPRET=1 (and the CPU) Triton's interpreter runs them instead of the compiler, which
checks the references without it.

A test says which kernels it checks with `@pytest.mark.checks("module:qualified name", ...)`, and
fails if it ran without launching one of them; checked_kernels.py lists the marks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parent))

DEVICE = os.environ.get("ANVIL_TRITON_TEST_DEVICE", "anvil")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


# Before any test module imports vLLM, which asks Triton for its drivers once.
if INTERPRETED:
    import interpretation

    interpretation.prepare()
else:
    from vllm_anvil.triton_backend import activate

    assert activate(), "the backend is not to be used here"

if DEVICE == "anvil":
    import vllm_anvil.device  # noqa: F401  registers torch.anvil


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "checks(*kernels): the Triton kernels ('module:name') that a test checks"
    )


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device(DEVICE)


@pytest.fixture(scope="session")
def draws() -> int:
    """How many random draws a test of a distribution makes; the interpreter is slow."""
    return 1_500 if INTERPRETED else 20_000


def _recorder(run: Callable[..., Any], launched: set[str]) -> Callable[..., Any]:
    def recording_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        launched.add(f"{self.fn.__module__}:{self.fn.__qualname__}")
        return run(self, *args, **kwargs)

    return recording_run


@pytest.fixture(autouse=True)
def launched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The kernels launched so far in the test; the ones it is marked to check must be in it."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    names: set[str] = set()
    for kind in (JITFunction, InterpretedFunction):
        monkeypatch.setattr(kind, "run", _recorder(kind.run, names))
    yield names
    checked = {name for mark in request.node.iter_markers("checks") for name in mark.args}
    missing = checked - names
    assert not missing or hasattr(request.node, "failed_call"), f"never launched: {missing}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Marks tests whose body did not pass, for which missing launches say nothing."""
    yield
    if call.when == "call" and call.excinfo is not None:
        item.failed_call = True  # type: ignore[attr-defined]
