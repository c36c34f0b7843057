# SPDX-License-Identifier: Apache-2.0
"""Runs the attention benchmark for the command line: progress, tables, files, exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from anvil_attention.bench import devices, runner
from anvil_attention.bench.checking import Status
from anvil_attention.bench.implementations import Candidate
from anvil_attention.bench.plot import plot
from anvil_attention.bench.problem import Problem
from anvil_attention.bench.results import Measured, ProblemResult, Results

STANDARD_OUTPUT = Path("-")


@dataclass(frozen=True)
class Outputs:
    """Files that are written; None: not."""

    json: Path | None = None
    csv: Path | None = None
    plot: Path | None = None


def device_of(name: str | None) -> torch.device:
    """The device that is asked for, or the best there is. Raises ValueError."""
    if name is not None:
        return devices.open_device(name)
    if torch.cuda.is_available():
        return devices.open_device("cuda")
    try:
        return devices.open_device("anvil")
    except ValueError:
        return devices.open_device("cpu")


def run(
    problems: Sequence[Problem],
    candidates: Sequence[Candidate],
    device: torch.device,
    settings: dict[str, Any],
    memory: int | None,
    outputs: Outputs,
) -> int:
    """Measures, prints and writes; returns the exit status."""
    # With JSON on standard output, everything else goes to the other one.
    to_stdout = outputs.json == STANDARD_OUTPUT
    console = Console(highlight=False, stderr=to_stdout)
    if memory is None:
        memory = min(devices.free_memory(device), devices.host_memory()) // 4
    with console.status("", spinner="line") as status:
        results = runner.run(
            problems,
            candidates,
            device,
            runner.Settings(memory=memory, **settings),
            lambda words: status.update(escape(words)),
        )
    show(results, console)
    problem = _write(results, outputs)
    if problem is not None:
        console.print(f"[red]{escape(problem)}[/]", soft_wrap=True)
    named = {candidate.name for candidate in candidates if candidate.named}
    return 1 if problem is not None or results.failed(named) else 0


def _write(results: Results, outputs: Outputs) -> str | None:
    """Writes the files; returns what went wrong."""
    try:
        if outputs.json == STANDARD_OUTPUT:
            print(json.dumps(results.as_dict(), indent=2), file=sys.stdout)
        elif outputs.json is not None:
            results.write_json(outputs.json)
        if outputs.csv is not None:
            results.write_csv(outputs.csv)
        if outputs.plot is not None:
            plot(results, outputs.plot)
    except (OSError, ValueError) as error:
        return str(error)
    return None


def show(results: Results, console: Console) -> None:
    """Prints a table per problem and the means over all of them."""
    machine = results.machine
    console.print(
        f"[bold]{escape(machine['device'])}[/]: {escape(machine['name'])}, "
        f"torch {escape(machine['torch'])}"
        + (f", {machine['threads']} threads" if "threads" in machine else ""),
        soft_wrap=True,
    )
    for result in results.problems:
        console.print()
        console.print(_table(result, results.baseline))
        for measured in result.measured:
            status, message = measured.outcome.status, measured.outcome.message
            if message:
                words = escape(f"{short_name(measured.name)}: {status}: {message}")
                console.print(f"[{_colour(status)}]{words}[/]", soft_wrap=True)
    for name, note in results.notes.items():
        if any(m.name == name and m.sample for p in results.problems for m in p.measured):
            console.print(f"[dim]{escape(name)}: {escape(note)}.[/]", soft_wrap=True)
    if len(results.problems) > 1:
        _means(results, console)


def short_name(name: str) -> str:
    """`path/to/file.py:function` without the path; other names as they are."""
    return name.rpartition("/")[2]


def _table(result: ProblemResult, baseline: str) -> Table:
    table = Table(title=_title(result), title_justify="left", title_style="", min_width=76)
    for column in ("Name", "Time", "Spread", "GB/s", "GFLOP/s", "Ceiling"):
        table.add_column(column, justify="left" if column == "Name" else "right", overflow="fold")
    table.add_column(f"vs {escape(short_name(baseline))}", justify="right")
    for measured in result.measured:
        table.add_row(escape(short_name(measured.name)), *_cells(result, measured, baseline))
    return table


def _title(result: ProblemResult) -> str:
    problem, spec = result.problem, result.problem.spec
    sizes = str(spec.head_size)
    if spec.value_head_size != spec.head_size:
        sizes += f"/{spec.value_head_size}"
    options = [
        _dtypes(problem),
        f"{spec.num_heads} heads on {spec.num_kv_heads} of {sizes}",
        f"blocks of {spec.block_size}, {problem.layout}",
    ]
    if spec.sliding_window is not None:
        options.append(f"window {spec.sliding_window}")
    if spec.logits_soft_cap is not None:
        options.append(f"soft cap {spec.logits_soft_cap:g}")
    options += ["sinks"] * spec.has_sinks + ["ALiBi"] * spec.has_alibi
    lines = [f"[bold]{escape(problem.label)}[/] ({problem.kind}): {', '.join(options)}"]
    if result.bytes_per_second:
        cost = result.cost
        lines.append(
            f"{_amount(cost.moved_bytes)}B and {_amount(cost.operations)}FLOP a call; ceilings "
            f"{result.bytes_per_second / 1e9:.1f} GB/s, "
            f"{result.operations_per_second / 1e9:.0f} GFLOP/s: bound by {result.bound}"
        )
        rotation = (
            f"{result.sets} sets of inputs, {result.set_bytes / 2**20:.0f} MiB read by all; "
            f"last-level cache {result.cache_bytes / 2**20:.0f} MiB"
        )
        if result.set_bytes <= result.cache_bytes:
            rotation += " [yellow](inputs may stay in it)[/]"
        lines.append(rotation)
    return "\n".join(lines)


def _dtypes(problem: Problem) -> str:
    dtype, kv = (str(d).removeprefix("torch.") for d in (problem.spec.dtype, problem.spec.kv_dtype))
    return dtype if dtype == kv else f"{dtype}, cache {kv}"


def _cells(result: ProblemResult, measured: Measured, baseline: str) -> list[str]:
    sample, status = measured.sample, measured.outcome.status
    if sample is None:
        return [f"[{_colour(status)}]{status}[/]", *[""] * 5]
    fraction, ratio = result.fraction(measured), result.ratio(measured, baseline)
    return [
        _seconds(sample.median),
        f"{sample.spread:.0%}",
        f"{result.cost.moved_bytes / sample.median / 1e9:.1f}",
        f"{result.cost.operations / sample.median / 1e9:.1f}",
        "" if fraction is None else f"{fraction:.0%}",
        "" if ratio is None else f"{ratio:.2f}x",
    ]


def _colour(status: Status) -> str:
    if status is Status.PASSED:
        return "green"
    return "red" if status.is_failure else "yellow"


def _means(results: Results, console: Console) -> None:
    table = Table(
        title=f"Times as fast as {escape(results.baseline)}, geometric mean",
        title_justify="left",
        title_style="bold",
        min_width=60,
    )
    for column in ("Name", "Mean", "Problems"):
        table.add_column(column, justify="left" if column == "Name" else "right", overflow="fold")
    for name in results.names:
        mean = results.mean_ratio(name)
        if mean is not None:
            table.add_row(escape(short_name(name)), f"{mean[0]:.2f}x", str(mean[1]))
    if table.row_count:
        console.print()
        console.print(table)


def _seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def _amount(value: float) -> str:
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "
