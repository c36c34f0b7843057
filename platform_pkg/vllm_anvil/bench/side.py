# SPDX-License-Identifier: Apache-2.0
"""The two sides of a comparison: an interpreter, its environment, the platform it must have."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ANVIL, IN_TREE = "anvil", "in-tree"
# Where `make baseline` puts the engine alone.
BASELINE_PYTHON = Path(".venv-baseline/bin/python")
# What would bring this package, or another interpreter's packages, into the baseline's process.
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "VLLM_PLUGINS")


@dataclass(frozen=True)
class Side:
    """One of those that are compared.

    Attributes:
        expect: what the name of its platform's class must begin with.
        absent: a package that must not be there.
        arguments: of vllm.LLM, beside those of both sides.
    """

    name: str
    python: str
    environment: Mapping[str, str]
    expect: str
    absent: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


def anvil() -> Side:
    """This interpreter, in this environment."""
    return Side(ANVIL, sys.executable, _quiet(os.environ), expect="vllm_anvil.")


def in_tree(python: Path | None, eager: bool) -> Side:
    """The engine's own CPU platform, without this package.

    Raises ValueError where there is no such interpreter.
    """
    chosen = BASELINE_PYTHON if python is None else python
    if not os.access(chosen, os.X_OK) or chosen.is_dir():
        missing = f"there is no Python at {chosen}"
        raise ValueError(
            f"{missing}: --baseline-python names one of an environment with the engine alone; "
            "`make baseline` makes such an environment, .venv-baseline. --baseline none measures "
            "anvil alone"
        )
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in FOREIGN and not name.startswith("ANVIL_")
    }
    return Side(
        IN_TREE,
        str(chosen.absolute()),
        _quiet(kept),
        expect="vllm.platforms.cpu.CpuPlatform",
        absent="vllm_anvil",
        arguments={"enforce_eager": True} if eager else {},
    )


def _quiet(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
