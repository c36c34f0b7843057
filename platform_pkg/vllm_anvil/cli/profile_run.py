# SPDX-License-Identifier: Apache-2.0
"""Runs `vllm-anvil profile`: the engine's process, tables, files."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_anvil.bench import side
from vllm_anvil.bench.run import Runner
from vllm_anvil.bench.scenario import scenarios_of
from vllm_anvil.bench.step_profile import StepProfile, chrome_trace
from vllm_anvil.cli.bench_e2e_run import Request, reporting, telling
from vllm_anvil.cli.output_file import check_folder, write


@dataclass(frozen=True)
class ProfileRequest(Request):
    """What the command line asks for."""

    trace: str | None = None
    top: int = 20

    def check_outputs(self) -> None:
        super().check_outputs()
        if self.trace is not None:
            check_folder("--trace", self.trace)


def run(request: ProfileRequest) -> int:
    """Measures and reports; returns the exit status."""
    return reporting(request, lambda _, console, folder: _run(request, console, folder))


def _run(request: ProfileRequest, console: Console, folder: Path) -> int:
    (scenario,) = scenarios_of(request.scenarios)
    if not scenario.runs_requests:
        raise ValueError(f"--scenario {scenario.name} has no steps: choose a decode or a prefill")
    model = request.served_model(folder)
    dtype = model.dtype(request.dtype)
    request.check_dtype(dtype)
    engine = model.engine_arguments([scenario], dtype, request.prefix_caching)
    runner = Runner(
        folder,
        engine,
        [scenario],
        model.vocabulary,
        request.seed,
        request.timeout_s,
        child="profile_child.py",
    )
    # The engine's core beside the program that drives it: one process has both clocks and threads.
    anvil = side.anvil()
    here = {**anvil.environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    with telling(console) as tell:
        ran, failure = runner.run(
            "the profiled engine", dataclasses.replace(anvil, environment=here), 0, tell
        )
    if failure is not None:
        raise failure
    found = StepProfile.from_report(ran.found)
    if request.trace is not None:
        write(request.trace, json.dumps(chrome_trace(ran.found)) + "\n")
    if request.json is not None:
        document: dict[str, Any] = {
            "model": model.name,
            "dtype": dtype,
            "scenario": scenario.name,
            **found.as_dict(),
        }
        write(request.json, json.dumps(document, indent=1) + "\n")
    _show(found, f"{model.name}, {dtype}, {scenario.name}", request.top, console)
    return 0


def _show(found: StepProfile, title: str, top: int, console: Console) -> None:
    steps = found.steps
    step = found.seconds / steps
    console.print(f"[bold]{escape(title)}[/]", soft_wrap=True)
    console.print(
        f"A step takes {step * 1e3:.2f} ms, the mean of {steps} ({found.untraced * 1e3:.2f} ms "
        f"while nothing is written down). The device runs for {found.busy / steps * 1e3:.2f} ms of "
        f"it, {found.busy / found.seconds:.0%}, and has nothing to run for "
        f"{found.idle / steps * 1e3:.2f} ms.",
        soft_wrap=True,
    )
    console.print(_ops(found, top))
    console.print(_phases(found))
    if found.dropped:
        console.print(
            f"[yellow]![/] {found.dropped} commands found no room in the trace and are counted as "
            "idle time: profile fewer tokens",
            soft_wrap=True,
        )
    for missing in found.missing:
        console.print(f"[yellow]![/] {escape(missing)}", soft_wrap=True)


def _ops(found: StepProfile, top: int) -> Table:
    table = Table(title="The device, by op", title_justify="left")
    table.add_column("Op", overflow="fold")
    table.add_column("Kernel")
    for name in ("Calls a step", "In graphs", "us a call", "ms a step", "Of the step"):
        table.add_column(name, justify="right")
    for op in found.ops[:top]:
        table.add_row(
            escape(op.name),
            op.kind,
            f"{op.calls / found.steps:.1f}",
            f"{op.in_graphs / op.calls:.0%}",
            f"{op.seconds / op.calls * 1e6:.1f}",
            f"{op.seconds / found.steps * 1e3:.3f}",
            f"{op.seconds / found.seconds:.1%}",
        )
    rest = found.ops[top:]
    if rest:
        seconds = sum(op.seconds for op in rest)
        table.add_row(
            f"{len(rest)} others",
            "",
            f"{sum(op.calls for op in rest) / found.steps:.1f}",
            "",
            "",
            f"{seconds / found.steps * 1e3:.3f}",
            f"{seconds / found.seconds:.1%}",
        )
    return table


def _phases(found: StepProfile) -> Table:
    table = Table(title="The host, by phase", title_justify="left")
    table.add_column("Phase")
    for name in ("ms a step", "Of the step", "Device idle meanwhile, ms"):
        table.add_column(name, justify="right")
    for phase in found.phases:
        table.add_row(
            escape(phase.name),
            f"{phase.seconds / found.steps * 1e3:.3f}",
            f"{phase.seconds / found.seconds:.1%}",
            f"{phase.device_idle / found.steps * 1e3:.3f}",
        )
    return table
