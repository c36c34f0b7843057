# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own op database on the device: every op gives what it gives on the CPU, or is refused.

The arithmetic of a fallback op is the CPU's own; the way there and back is tested: aliasing,
strides, dtypes, out-of-place, in-place and out= forms, lists, scalars, generators, and all of that
while commands start late and memory without contents is poisoned. A process of its own does it,
since the device reads such settings once; see op_support.py. Its lines are read as they come, so
that each test is done when its op is.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import pytest

SCRIPT = Path(__file__).with_name("op_support.py")

op_database = pytest.importorskip("torch.testing._internal.common_methods_invocations")
OPS = [op.formatted_name for op in op_database.op_db]


class Findings:
    def __init__(self, process: subprocess.Popen[str], errors: IO[str]):
        self._process = process
        self._errors = errors
        self._by_op: dict[str, dict[str, Any]] = {}

    def of(self, op: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        while op not in self._by_op:
            line = self._process.stdout.readline()
            if not line:
                self._errors.seek(0)
                status, end = self._process.wait(), self._errors.read()[-4000:]
                pytest.fail(f"the run ended before this op, with status {status}:\n{end}", False)
            found = json.loads(line)
            self._by_op[found["op"]] = found
        return self._by_op[op]


@pytest.fixture(scope="module")
def findings(request: pytest.FixtureRequest) -> Iterator[Findings]:
    """What the run finds, of the ops that this session's tests ask for."""
    items = [item for item in request.session.items if item.path == request.path]
    asked = [item.callspec.params["op"] for item in items if hasattr(item, "callspec")]
    command = [sys.executable, "-X", "faulthandler", str(SCRIPT)]
    if len(asked) == len(items):  # without the test of the page
        command += asked
    with TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            yield Findings(process, errors)
        finally:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("op", OPS)
def test_op_equals_the_cpu(op: str, findings: Findings) -> None:
    errors = findings.of(op)["errors"]
    if errors:
        pytest.fail("\n\n".join(errors), pytrace=False)


def test_the_page_on_ops_is_up_to_date(findings: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    op_support = importlib.import_module("op_support")
    page = op_support.page([findings.of(op) for op in OPS])
    assert op_support.PAGE.read_text() == page, "run `make docs`"
