# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil parity`: op cases on a device against float64 and the engine's own kernels."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_anvil.cli import parity_report, parity_run
from vllm_anvil.cli.output_file import check_folder, write
from vllm_anvil.cli.parity_child import Plan
from vllm_anvil.cli.parity_run import Run
from vllm_anvil.cli.ready_device import Refused
from vllm_anvil.testing import report

DEVICES_WITH_INSTRUCTION_SETS = ("anvil", "cpu")


@dataclass(frozen=True)
class Request:
    """What the command line asks for. `isa` may be "all"; `json` may be "-", standard output."""

    device: str = "anvil"
    isa: str | None = None
    ops: tuple[str, ...] = ()
    text: str = ""
    engine: bool = True
    replay: str | None = None
    json: str | None = None
    html: str | None = None


def run(request: Request) -> int:
    """Runs and reports. Returns the exit status: 0 if all passed, 1 if not, 2 if the request is
    wrong, 130 if it was interrupted."""
    errors = Console(stderr=True, highlight=False)
    try:
        _check_files(request)
        runs = _run_all(_plans(request), errors)
        if not any(one.results or one.interrupted for one in runs):
            raise Refused(f"no case has {request.text!r} in its op or name")
    except Refused as error:
        errors.print(f"[red]Error:[/] {escape(str(error))}", soft_wrap=True)
        return error.status
    if request.json is not None:
        write(request.json, json.dumps(document(request, runs), indent=1) + "\n")
    if request.html is not None:
        from vllm_anvil.cli import parity_page

        write(request.html, parity_page.page(request.device, runs))
    parity_report.show(runs, errors if request.json == "-" else parity_report.console())
    if any(one.interrupted for one in runs):
        return 130
    return 0 if passed(runs) else 1


def passed(runs: Sequence[Run]) -> bool:
    """Whether all results are right and all tables could be loaded."""
    return all(report.succeeded(one.results) and not one.ready.get("problems") for one in runs)


def document(request: Request, runs: Sequence[Run]) -> dict[str, Any]:
    """The run as JSON: what was asked, and for each instruction set what ran and what came out."""
    return {
        "request": asdict(request),
        "passed": passed(runs) and not any(one.interrupted for one in runs),
        "runs": [
            {
                "device": one.plan.device,
                "interrupted": one.interrupted,
                **{name: value for name, value in one.ready.items() if name != "event"},
                "results": [report.to_json(result) for result in one.results],
            }
            for one in runs
        ],
    }


def _check_files(request: Request) -> None:
    """Finds out before the run what would spoil its end."""
    if request.html is not None and importlib.util.find_spec("matplotlib") is None:
        raise Refused("--html draws with matplotlib: pip install 'vllm-anvil[bench]'")
    for option, name in (("--json", request.json), ("--html", request.html)):
        if name is not None:
            check_folder(option, name)
    if request.html == "-":
        raise Refused("--html needs a file")
    if request.replay is not None and not Path(request.replay).exists():
        raise Refused(f"--replay {request.replay}: there is no such file")


def _plans(request: Request) -> list[Plan]:
    """One plan for each instruction set. The engine's kernels, which have their own, run once."""
    replay = None if request.replay is None else str(Path(request.replay).resolve())
    plan = Plan(request.device, None, request.ops, request.text, request.engine, replay)
    if request.isa is None:
        return [plan]
    if request.device.partition(":")[0] not in DEVICES_WITH_INSTRUCTION_SETS:
        raise Refused(f"--isa is for anvil and cpu; {request.device} has no instruction sets")
    found = parity_run.facts(request.device)
    if found["native_missing"] is not None:
        raise Refused(f"--isa needs the native kernels: {found['native_missing']}")
    isas = found["isas"] if request.isa == "all" else [request.isa]
    if isas[0] not in found["isas"]:
        known = ", ".join(found["isas"])
        raise Refused(
            f"--isa {request.isa}: this machine has no such instruction set; choose one of "
            f"{known}, or all"
        )
    values = asdict(plan)
    return [
        Plan(**values | {"isa": isa, "engine": request.engine and isa == isas[0]}) for isa in isas
    ]


def _run_all(plans: Sequence[Plan], console: Console) -> list[Run]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    runs: list[Run] = []
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        for plan in plans:
            where = f"{plan.device} {plan.isa or ''}".strip()
            task = bar.add_task(f"{where}: starting", total=None)

            def progress(
                op: str, case: str, number: int, total: int, where: str = where, task: Any = task
            ) -> None:
                text = escape(f"{where}: {op} {case}")
                bar.update(task, description=text, completed=number, total=total)

            runs.append(parity_run.carry_out(plan, progress))
            bar.remove_task(task)
            if runs[-1].interrupted:
                break
    return runs
