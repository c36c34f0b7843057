# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil triton inventory`: the engine's Triton kernels with their states.

The engine is not imported: kernels are found in its source, their states are recorded, and
compiling happens in other processes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from vllm_anvil.plugin.triton_inventory import compilation, discovery, inventory
from vllm_anvil.plugin.triton_inventory.inventory import SETTLED, Entry, Record, State
from vllm_anvil.plugin.triton_inventory.specimens import AREAS

COLOURS = {
    State.CHECKED: "green",
    State.COMPILED: "green",
    State.OVERRIDDEN: "cyan",
    State.REFUSED: "yellow",
    State.FAILING: "red",
    State.UNKNOWN: "red",
}


@dataclass(frozen=True)
class Choice:
    """Which kernels are meant: those whose names have `name`, of the areas and in the states
    given; none given means all."""

    name: str = ""
    areas: tuple[str, ...] = ()
    states: tuple[str, ...] = ()

    def problem(self) -> str | None:
        """What is wrong with it."""
        for given, known, what in (
            (self.areas, [area.name for area in AREAS], "area"),
            (self.states, [str(state) for state in State], "state"),
        ):
            for one in given:
                if one not in known:
                    return f"there is no {what} {one!r}; there are {', '.join(known)}"
        return None

    def has(self, entry: Entry) -> bool:
        return (
            self.name in entry.kernel
            and entry.area in (self.areas or (entry.area,))
            and entry.state in (self.states or (entry.state,))
        )


def run(choice: Choice, processes: int, as_json: bool) -> int:
    """Prints the inventory, having compiled the kernels with that many processes if any; returns
    the exit status: 0 if all kernels listed are settled."""
    console = Console(highlight=False)
    if (problem := choice.problem()) is not None:
        return _refuse(problem)
    try:
        kernels = discovery.kernels(discovery.package_root("vllm"), "vllm")
    except ModuleNotFoundError as error:
        return _refuse(str(error))
    record = inventory.recorded()
    if processes:
        wanted = replace(choice, states=())
        names = [
            entry.kernel
            for entry in inventory.entries(kernels, record)
            if wanted.has(entry) and entry.state not in (State.REFUSED, State.OVERRIDDEN)
        ]
        try:
            record = _compile(names, processes, record, quiet=as_json)
        except compilation.WorkerEnded as error:
            return _refuse(f"the compiler could not be started: {error}")
    found = [entry for entry in inventory.entries(kernels, record) if choice.has(entry)]
    if as_json:
        print(json.dumps([entry.as_dict() for entry in found], indent=2))
    else:
        _show(found, record, console, compiled=bool(processes))
    return 0 if all(entry.state in SETTLED for entry in found) else 1


def _refuse(problem: str) -> int:
    Console(stderr=True, highlight=False).print(escape(problem), soft_wrap=True)
    return 1


def _compile(names: list[str], processes: int, record: Record, quiet: bool) -> Record:
    """The record, with what the kernels named come to now."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True, highlight=False),
        disable=quiet,
    )
    with progress:
        task = progress.add_task("starting", total=len(names))

        def tell(result: compilation.Result) -> None:
            short = result.kernel.rpartition(":")[2]
            progress.update(task, advance=1, description=escape(short[:40].ljust(40)))

        done = compilation.compile_all(names, processes, progress=tell)
    return inventory.with_results(record, done)


def _show(found: list[Entry], record: Record, console: Console, compiled: bool) -> None:
    table = Table(title="Triton kernels", title_justify="left", title_style="bold")
    table.add_column("Kernel", overflow="fold")
    table.add_column("Area")
    table.add_column("State", overflow="fold")
    for entry in found:
        reason = f": {escape(entry.reason)}" if entry.reason else ""
        table.add_row(
            escape(entry.kernel.partition(".")[2]),
            entry.area,
            f"[{COLOURS[entry.state]}]{entry.state}[/]{reason}",
        )
    console.print(table)
    console.print(_summary(found))
    engine = _engine_version()
    if not compiled and engine != record.engine:
        console.print(
            f"[yellow]![/] The states were recorded with vLLM {record.engine}; {engine} is "
            "installed. --compile finds out.",
            soft_wrap=True,
        )


def _summary(found: Iterable[Entry]) -> str:
    count = Counter(entry.state for entry in found)
    parts = [f"[{COLOURS[state]}]{count[state]} {state}[/]" for state in State if count[state]]
    return f"{sum(count.values())} kernels: {', '.join(parts) or 'none'}"


def _engine_version() -> str:
    return inventory.engine_version() or "an unknown version"
