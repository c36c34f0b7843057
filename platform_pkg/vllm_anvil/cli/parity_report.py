# SPDX-License-Identifier: Apache-2.0
"""A parity run in the terminal: a table for each instruction set, then what is wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_anvil.cli.parity_run import Run
from vllm_anvil.testing.report import OpSummary, by_op, share
from vllm_anvil.testing.result import ENGINE

FAILURES_PER_OP = 5


def console() -> Console:
    """Standard output; wide enough for the tables where it is no terminal."""
    sized = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if sized else 120)


def show(runs: Sequence[Run], console: Console) -> None:
    """Prints the runs to `console`."""
    for run in runs:
        summaries = by_op(run.results)
        console.print(_table(run, summaries))
        for summary in summaries:
            _failures(summary, console)
    _notes(runs, console)
    _verdict(runs, console)


def problems(runs: Sequence[Run]) -> list[str]:
    """What is wrong with op tables; each run has found the same."""
    found = [
        f"op table {problem['table']} of {problem['distribution']}: {problem['message']}"
        for run in runs
        for problem in run.ready.get("problems", ())
    ]
    return list(dict.fromkeys(found))


def _table(run: Run, summaries: Sequence[OpSummary]) -> Table:
    isa = run.ready.get("isa")
    title = run.plan.device + (f", {isa}" if isa else "")
    table = Table(title=title, title_justify="left", title_style="bold")
    peers = sorted({name for summary in summaries for name in summary.peers})
    table.add_column("Op", no_wrap=True)
    table.add_column("Implementation", overflow="fold")
    for column in ("Cases", "Calls", "Worst error"):
        table.add_column(column, justify="right")
    for peer in peers:
        table.add_column(f"{peer.capitalize()}'s worst", justify="right")
        table.add_column(f"From {peer}'s", justify="right")
    table.add_column("")
    for summary in summaries:
        row = [
            summary.op.removeprefix("anvil::"),
            run.ready["implementations"].get(summary.op, ""),
            str(summary.cases),
            str(summary.calls),
            share(summary.worst),
        ]
        for peer in peers:
            row += [share(summary.peers.get(peer)), share(summary.apart.get(peer))]
        mark = "[green]ok[/]" if summary.passed else f"[red]{len(summary.failed)} failed[/]"
        table.add_row(*map(escape, row), mark)
    return table


def _failures(summary: OpSummary, console: Console) -> None:
    found = [line for result in summary.failed for line in result.failures()]
    for line in found[:FAILURES_PER_OP]:
        console.print(f"[red]x[/] {escape(line)}", soft_wrap=True)
    if len(found) > FAILURES_PER_OP:
        more = len(found) - FAILURES_PER_OP
        console.print(f"  ... and {more} more of {escape(summary.op)}; --json has them all")


def _notes(runs: Sequence[Run], console: Console) -> None:
    for problem in problems(runs):
        console.print(f"[red]x[/] {escape(problem)}", soft_wrap=True)
    ready = runs[0].ready
    if ready.get("native_missing"):
        console.print(
            "[yellow]![/] The references were run, since there are no native kernels: "
            f"{escape(ready['native_missing'])}",
            soft_wrap=True,
        )
    if ready.get("engine_missing"):
        console.print(
            f"[dim]The {ENGINE}'s kernels were not run: {escape(ready['engine_missing'])}.[/]",
            soft_wrap=True,
        )
    if any(run.interrupted for run in runs):
        console.print("[yellow]![/] Interrupted; the tables show what had run.")


def _verdict(runs: Sequence[Run], console: Console) -> None:
    summaries = [summary for run in runs for summary in by_op(run.results)]
    calls = sum(summary.calls for summary in summaries)
    failed = sum(len(summary.failed) for summary in summaries)
    tables = len(problems(runs))
    parts = [f"{len({s.op for s in summaries})} ops", f"{calls} calls", f"{failed} failed"]
    if len(runs) > 1:
        parts.insert(1, f"{len(runs)} instruction sets")
    if tables:
        parts.append(f"{tables} op tables with problems")
    colour = "red" if failed or tables else "green"
    console.print(
        f"[{colour}]{', '.join(parts)}[/]. Errors are fractions of what is allowed.",
        soft_wrap=True,
    )
