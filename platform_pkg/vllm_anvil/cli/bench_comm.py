# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil bench comm`."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_anvil.bench import comm as bench
from vllm_anvil.bench import plot as plots
from vllm_anvil.cli import output_file
from vllm_anvil.cli.ready_device import Refused


def comm(
    ranks: Annotated[int, typer.Option(min=2, max=64, help="Processes that communicate.")] = 2,
    operation: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(bench.OPERATIONS)}; may be repeated. Default: all.",
            show_default=False,
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            help="Bytes of a message, what a rank gives or gets, whichever is more: 4096, 64KiB, "
            "16MiB; may be repeated. Default: 8, 1KiB, 8KiB, 64KiB, 1MiB and 16MiB.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help=f"{', '.join(bench.DTYPES)}.")] = "float32",
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each way, in turn.")] = 7,
    seconds: Annotated[
        float, typer.Option(min=0.01, help="How long to measure each operation and size.")
    ] = 0.5,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that all of it may take.")
    ] = 600.0,
    json: Annotated[
        str | None, typer.Option(help='Write all figures to this file; "-": standard output.')
    ] = None,
    plot: Annotated[str | None, typer.Option(help="Draw time by size (.png, .svg, .pdf).")] = None,
) -> None:
    """Time collectives between ranks, beside gloo and what copying the same bytes takes.

    Exit status 0 if all results were right, 1 if not, 2 if the request is wrong.
    """
    console = Console(stderr=json == "-")
    try:
        sizes = [bench.parse_size(text) for text in size or ()] or list(bench.SIZES)
        unknown = set(operation or ()) - set(bench.OPERATIONS)
        if unknown:
            choices = ", ".join(bench.OPERATIONS)
            raise ValueError(f"--operation {unknown.pop()}: choose from {choices}")
        if dtype not in bench.DTYPES:
            raise ValueError(f"--dtype {dtype}: choose from {', '.join(bench.DTYPES)}")
        if json is not None:
            output_file.check_folder("--json", json)
        if plot is not None:
            output_file.check_folder("--plot", plot)
            plots.check(Path(plot))
    except (ValueError, Refused, ModuleNotFoundError) as error:
        console.print(f"[red]x[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from None
    names = tuple(operation or bench.OPERATIONS)
    try:
        measured = bench.measure(ranks, names, sizes, dtype, rounds, seconds, timeout)
    except bench.RanksFailed as error:
        console.print(f"[red]x[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from None
    _show(measured, console)
    if json is not None:
        output_file.write(json, json_module.dumps(measured.as_json(), indent=1) + "\n")
    if plot is not None:
        bench.draw(measured, Path(plot))
    raise typer.Exit(1 if any(row.wrong for row in measured.rows) else 0)


def _show(measured: bench.Measured, console: Console) -> None:
    place = "a device each" if measured.devices > 1 else "one device's cores for all"
    title = f"{measured.ranks} ranks, {place}, {measured.dtype}"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("Operation", no_wrap=True)
    for name in ("Bytes", "anvil", "gloo", "copy", "gloo / anvil", "copy / anvil"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in measured.rows:
        cells = [row.operation, f"{row.size:,}"]
        cells += [_time(row, way) for way in ("anvil", "gloo", "copy")]
        cells += [f"{row.ratio('gloo'):.1f}x", f"{row.ratio('copy'):.0%}"]
        table.add_row(*cells)
    console.print(table)
    if measured.fallback:
        console.print(f"[yellow]![/] over gloo as well: {escape(measured.fallback)}")
    for row in measured.rows:
        for way in row.wrong:
            console.print(f"[red]x[/] {row.operation} of {row.size:,} bytes by {way} was wrong")


def _time(row: bench.Row, way: str) -> str:
    microseconds = row.median(way) * 1e6
    if row.size < 1 << 16:
        return f"{microseconds:,.1f} us"
    return f"{microseconds:,.0f} us, {row.bandwidth(way) / 1e9:.1f} GB/s"
