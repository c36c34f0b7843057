# SPDX-License-Identifier: Apache-2.0
"""The page of ops that is made from the tables."""

import dataclasses
from pathlib import Path

from specimens import ADD_SCALED, SCALE_ROWS

from vllm_anvil.testing.op_case import Tolerance
from vllm_anvil.testing.support_table import callers, page


def rows(text: str) -> dict[str, list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_says_what_the_tables_say() -> None:
    varying = dataclasses.replace(
        SCALE_ROWS,
        name="varying",
        allowed={
            "result": lambda expected, dtype, arguments: Tolerance(3.0).allowed(
                expected, dtype, arguments
            )
        },
    )
    exact = dataclasses.replace(SCALE_ROWS, name="exact", family="other", allowed=Tolerance(0.0))
    text = page([SCALE_ROWS, ADD_SCALED, varying, exact], ["cpu"], {"scale_rows": ["a.b", "c"]})
    found = rows(text)
    assert found["scale_rows"] == [
        *("float32, bfloat16 with float32", "`x`", "the table's call", "1 u"),
        *("4", "`a.b`<br>`c`"),
    ]
    assert found["add_scaled"][1] == "`total`, `x`"
    assert found["add_scaled"][3] == "2 u + 1e-06"
    assert found["varying"][3] == "`result`: 3 u"
    assert found["exact"][3] == "none"
    assert text.index("## other") < text.index("## specimen")


def test_finds_who_calls_an_op(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "__init__.py").write_text("from vllm_anvil.ops import norm\nnorm.rms_norm(1)\n")
    (tmp_path / "inner/direct.py").write_text(
        "from vllm_anvil.ops.cache import copy_blocks\nimport torch\ntorch.ops.anvil.linear(1)\n"
    )
    (tmp_path / "other.py").write_text(
        "from somewhere import norm\nnorm.rms_norm(1)\ndef softmax(): ...\nself.softmax()\n"
    )
    names = ["rms_norm", "copy_blocks", "linear", "softmax"]
    assert callers(names, {"package": tmp_path}) == {
        "rms_norm": ["package"],
        "copy_blocks": ["package.inner.direct"],
        "linear": ["package.inner.direct"],
    }
