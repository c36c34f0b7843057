# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operators on the device in batch-invariant mode: rows do not depend on one another,
values are PyTorch's, and what has no such form is refused by name.

The mode changes a process for good, so that one of its own looks at all of PyTorch's table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    result = tmp_path_factory.mktemp("operators") / "result.json"
    done = subprocess.run(
        [sys.executable, str(HERE / "invariant_operators.py"), str(result)],
        env={**os.environ, "VLLM_PLUGINS": "anvil"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode != 0:
        pytest.fail(f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}", pytrace=False)
    return json.loads(result.read_text())


def test_rows_do_not_depend_on_one_another(found: dict[str, Any]) -> None:
    assert found["varies"] == []
    assert len(found["looked_at"]["rows"]) > 200
    assert {"mm", "linear", "bmm", "softmax", "sigmoid", "sum"} <= set(found["looked_at"]["rows"])


def test_values_are_pytorchs(found: dict[str, Any]) -> None:
    assert found["wrong"] == []
    assert len(found["looked_at"]["values"]) > 50


def test_results_that_are_given_a_place(found: dict[str, Any]) -> None:
    assert found["places"] == []


def test_what_has_no_such_form_is_refused_by_name(found: dict[str, Any]) -> None:
    assert "torch.ops.aten.addbmm on the anvil device depends on the batch" in found["refusal"]
