# SPDX-License-Identifier: Apache-2.0
"""What a process finds beside the engine: the example's package, and distributions of tests."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples/plugins"

EntryPoints = Mapping[str, Mapping[str, str]]


def install(folder: Path, name: str, entry_points: EntryPoints) -> None:
    """Makes a distribution with nothing but entry points; a process with the folder on its path
    has it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def example_entry_points() -> dict[str, dict[str, str]]:
    """Those of examples/plugins."""
    return tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]


def environment(*folders: Path, **variables: str) -> dict[str, str]:
    """This process's, with more folders to import from."""
    paths = [*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}
