# SPDX-License-Identifier: Apache-2.0
"""docs/reference/attention_contract.md says what the contract's definition says."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

from dense_attention import Sketch
from triton_geometries import GEOMETRIES

from anvil_attention import contract, triton_kernels

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "attention_contract.md"
ARGUMENTS = set(Sketch(GEOMETRIES["mha"], [(1, 3)]).call().keywords())


def test_signature() -> None:
    [parameters] = re.findall(r"def my_attention\(\s*\*,(.*?),?\s*\):", PAGE.read_text(), re.DOTALL)
    assert set(re.split(r",\s*", parameters.strip())) == ARGUMENTS


def explained(heading: str) -> set[str]:
    """Names in the first column of the table under a heading row that begins so."""
    _, _, table = PAGE.read_text().partition(heading)
    rows = re.findall(r"^\| (`.*?) \|", table.partition("\n\n")[0], re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_every_argument_is_explained() -> None:
    assert explained("| Argument | Shape, dtype |") == ARGUMENTS


def test_every_attribute_is_explained() -> None:
    attributes = {field.name for field in dataclasses.fields(contract.AttentionImplementation)}
    # The function itself; and what only adapters for comparisons have, explained with the cache.
    assert explained("| Attribute | Default |") == attributes - {"function", "prepare"}


def test_version() -> None:
    text = PAGE.read_text()
    assert f"Version **{contract.CONTRACT_VERSION}**" in text
    assert f"version={contract.CONTRACT_VERSION}," in text
    table = re.findall(r"^\| (\d+) \|", text, re.MULTILINE)
    assert table[-1] == str(contract.CONTRACT_VERSION)


def test_an_implementation_takes_every_argument_by_name() -> None:
    signature = inspect.signature(triton_kernels.paged_attention)
    assert set(signature.parameters) == ARGUMENTS
