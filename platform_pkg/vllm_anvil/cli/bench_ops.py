# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil bench ops`: the time of ops, beside the reference and the engine's own kernels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from vllm_anvil.cli import parity_report
from vllm_anvil.cli.output_file import check_folder, write
from vllm_anvil.cli.ready_device import ReadyDevice, Refused
from vllm_anvil.testing.result import ENGINE

if TYPE_CHECKING:
    from vllm_anvil.testing.op_benchmark import Timing


@dataclass(frozen=True)
class Request:
    """What the command line asks for. `json` may be "-", standard output."""

    device: str = "anvil"
    ops: tuple[str, ...] = ()
    seconds: float = 0.3
    json: str | None = None


def run(request: Request) -> int:
    """Measures and reports. Returns the exit status: 0 if all results were right, 1 if not, 2 if
    the request is wrong."""
    errors = Console(stderr=True, highlight=False)
    try:
        if request.json is not None:
            check_folder("--json", request.json)
        device = ReadyDevice(request.device)
        timings, implementations, notes = _measure(request, device, errors)
    except Refused as error:
        errors.print(f"[red]Error:[/] {escape(str(error))}", soft_wrap=True)
        return 2
    if request.json is not None:
        found = document(request, device, timings, implementations)
        write(request.json, json.dumps(found, indent=1) + "\n")
    shown = errors if request.json == "-" else parity_report.console()
    shown.print(_table(device, timings, implementations))
    for timing in timings:
        if timing.problem is not None:
            text = f"{timing.op}, {timing.case}: not timed: {timing.problem}"
            shown.print(f"[red]x[/] {escape(text)}", soft_wrap=True)
    for note in notes:
        shown.print(f"[yellow]![/] {escape(note)}", soft_wrap=True)
    return 1 if notes or any(timing.problem for timing in timings) else 0


def _measure(
    request: Request, device: ReadyDevice, console: Console
) -> tuple[list[Timing], dict[str, str], list[str]]:
    """The timings, the implementation of each op, and what is wrong with op tables."""
    from vllm_anvil.testing import engine_peers, op_benchmark, parity, registry

    found = registry.load()
    try:
        chosen = found.choose(request.ops)
    except LookupError as error:
        raise Refused(str(error.args[0])) from None
    try:
        peers = engine_peers.peers()
    except engine_peers.EngineUnavailable:
        peers = {}
    timings: list[Timing] = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        for op in bar.track(chosen, description="measuring"):
            timings += op_benchmark.measure(
                op, request.device, request.seconds, peers.get(op.qualified_name)
            )
    implementations = {
        op.qualified_name: device.implementation(parity.implementation_of(op, request.device))
        for op in chosen
    }
    return timings, implementations, [str(problem) for problem in found.problems]


def document(
    request: Request,
    device: ReadyDevice,
    timings: Sequence[Timing],
    implementations: dict[str, str],
) -> dict[str, Any]:
    """The figures as JSON: times in seconds, bandwidths in bytes per second."""
    return {
        "device": request.device,
        "isa": device.isa,
        "timings": [
            asdict(timing)
            | {
                "implementation": implementations[timing.op],
                "bandwidth": timing.bandwidth(),
                "of_ceiling": timing.of_ceiling(),
            }
            for timing in timings
        ],
    }


def _table(
    device: ReadyDevice, timings: Sequence[Timing], implementations: dict[str, str]
) -> Table:
    title = device.name + (f", {device.isa}" if device.isa else "")
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("Op", no_wrap=True)
    table.add_column("Case", overflow="fold")
    table.add_column("Implementation", overflow="fold")
    for column in ("us", "GB/s", "Of ceiling", f"x {ENGINE}'s", "x unfused", "x reference"):
        table.add_column(column, justify="right")
    for timing in timings:
        if timing.problem is not None:
            continue
        bandwidth, of_ceiling = timing.bandwidth(), timing.of_ceiling()
        table.add_row(
            escape(timing.op.removeprefix("anvil::")),
            escape(timing.case),
            escape(implementations[timing.op]),
            f"{timing.seconds['op'] * 1e6:.1f}",
            "-" if bandwidth is None else f"{bandwidth / 1e9:.1f}",
            "-" if of_ceiling is None else f"{of_ceiling:.0%}",
            _ratio(timing.times_as_fast_as(ENGINE)),
            _ratio(timing.times_as_fast_as("unfused")),
            _ratio(timing.times_as_fast_as("reference")),
        )
    ceilings = sorted(timing.ceiling for timing in timings if timing.ceiling)
    if ceilings:
        table.caption = (
            f"Ceiling: reading memory at {ceilings[0] / 1e9:.1f} to {ceilings[-1] / 1e9:.1f} GB/s. "
            "x: how many times as fast."
        )
    return table


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
