# SPDX-License-Identifier: Apache-2.0
"""The table of `vllm-anvil bench e2e`."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_anvil.bench.comparison import Comparison, Row
from vllm_anvil.bench.scenario import Kind
from vllm_anvil.bench.side import ANVIL


def show(comparison: Comparison, model: str, console: Console, note: str | None) -> None:
    """Prints the table, what is behind its figures, and what is wrong with them."""
    rows = comparison.rows()
    if rows:
        console.print(_table(comparison, rows, model))
    for line in _facts(comparison):
        console.print(escape(line), soft_wrap=True)
    if note is not None:
        console.print(f"[yellow]![/] {escape(note)}", soft_wrap=True)
    for changed in comparison.changed_tokens():
        console.print(f"[red]x[/] {escape(changed)}", soft_wrap=True)


def _table(comparison: Comparison, rows: list[Row], model: str) -> Table:
    names = [side.name for side in comparison.sides]
    table = Table(title=f"{model}, {comparison.dtype}", title_justify="left", title_style="bold")
    table.add_column("Scenario", no_wrap=True)
    table.add_column("Requests", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
        table.add_column("+-", justify="right")
        table.add_column("Of floor", justify="right")
    if len(names) > 1:
        table.add_column("Ratio", justify="right")
        table.add_column("Same tokens", justify="right")
    for row in rows:
        cells = [row.scenario.name, row.scenario.describe()]
        for name in names:
            cells += _cells(row, name)
        if len(names) > 1:
            cells.append("-" if row.ratio is None else f"{row.ratio:.2f}x")
            cells.append("-" if row.same_tokens is None else f"{row.same_tokens:.0%}")
        table.add_row(*map(escape, cells))
    return table


def _cells(row: Row, side: str) -> list[str]:
    figures = row.figures.get(side)
    if figures is None:
        return ["-", "", ""]
    of_floor = row.of_floor.get(side)
    return [
        _figure(row, side),
        f"{figures.spread:.0%}" if len(figures.values) > 1 else "-",
        "-" if of_floor is None else f"{of_floor:.0%}",
    ]


def _figure(row: Row, side: str) -> str:
    median, rate = row.figures[side].median, row.rate(side)
    if row.scenario.kind is Kind.MEMORY:
        return f"{median / 2**30:.2f} GiB"
    if rate is None:
        return f"{median:.1f} s"
    if row.scenario.kind is Kind.PREFILL:
        return f"{median:.2f} s, {rate:,.0f} tok/s"
    return f"{median * 1e3:.2f} ms, {rate:,.0f} tok/s"


def _facts(comparison: Comparison) -> list[str]:
    lines = []
    for side in comparison.sides:
        run = next((r for r in comparison.runs if r.side == side.name and "dtype" in r.found), None)
        if run is None:
            continue
        found, parts = run.found, run.found["start_up"]
        lines.append(
            f"{side.name}: {found['platform'].rpartition('.')[2]}, vLLM {found['vllm']}, torch "
            f"{found['torch']}, compilation {found['compilation']}, up to "
            f"{found['batched_tokens']:,} tokens a step; first start {parts['total_s']:.1f} s: "
            f"import {parts['import_s']:.1f}, load {parts['load_s']:.1f}, first token "
            f"{parts['first_token_s']:.1f}"
        )
    ceilings = [run.ceiling for run in comparison.runs if run.ceiling]
    if ceilings:
        read, arithmetic = (
            [one.read / 1e9 for one in ceilings],
            [one.arithmetic / 1e9 for one in ceilings],
        )
        lines.append(
            f"Floor: the weights and the KV cache read once at {min(read):.0f} to {max(read):.0f} "
            f"GB/s, or the operations at {min(arithmetic):.0f} to {max(arithmetic):.0f} GFLOP/s, "
            "measured between the runs; the longer of the two"
        )
    if any(row.ratio is not None for row in comparison.rows()):
        lines.append(
            f"Ratio: the other's figure over {ANVIL}'s, so that more than 1 is in {ANVIL}'s favour"
        )
    return lines
