# SPDX-License-Identifier: Apache-2.0
"""Runs `vllm-anvil bench e2e`: sides, progress, files, exit status."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from vllm_anvil.bench import plot, side
from vllm_anvil.bench.child_process import ChildFailed
from vllm_anvil.bench.comparison import Comparison
from vllm_anvil.bench.model_cost import ELEMENT_BYTES
from vllm_anvil.bench.run import Refused as SideRefused
from vllm_anvil.bench.run import Runner, Tell
from vllm_anvil.bench.scenario import scenarios_of
from vllm_anvil.bench.served_model import ServedModel
from vllm_anvil.cli import bench_e2e_report, parity_report
from vllm_anvil.cli.bench_e2e import DEMO_MODEL
from vllm_anvil.cli.output_file import check_folder, write
from vllm_anvil.cli.ready_device import Refused


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    model: Path | None = None
    shape: str | None = None
    dtype: str = "auto"
    baseline: str = side.IN_TREE
    baseline_python: Path | None = None
    baseline_eager: bool = False
    scenarios: tuple[str, ...] = ()
    repeats: int = 3
    prefix_caching: bool = False
    timeout_s: float = 1800.0
    seed: int = 0
    json: str | None = None
    plot: str | None = None

    def sides(self) -> list[side.Side]:
        """Anvil, and what it is compared with. Raises ValueError."""
        if self.baseline == "none":
            return [side.anvil()]
        if self.baseline != side.IN_TREE:
            raise ValueError(f"--baseline {self.baseline}: there are {side.IN_TREE} and none")
        return [side.anvil(), side.in_tree(self.baseline_python, self.baseline_eager)]

    def served_model(self, folder: Path) -> ServedModel:
        """`folder`: for a made-up model's configuration. Raises ValueError."""
        if self.shape is None:
            return ServedModel.from_folder(DEMO_MODEL if self.model is None else self.model)
        if self.model is not None:
            raise ValueError("--model and --shape both name what to serve: give one")
        shaped = folder / "model"
        shaped.mkdir()
        return ServedModel.from_shape(self.shape, shaped)

    def check_dtype(self, dtype: str) -> None:
        if dtype not in ELEMENT_BYTES:
            raise ValueError(f"--dtype {dtype}: there are {', '.join(ELEMENT_BYTES)} and auto")

    def check_outputs(self) -> None:
        """Raises Refused for files that could not be written at the end."""
        for option, name in (("--json", self.json), ("--plot", self.plot)):
            if name is not None:
                check_folder(option, name)
        if self.plot is not None:
            try:
                plot.check(Path(self.plot))
            except (ModuleNotFoundError, ValueError) as error:
                raise Refused(str(error)) from None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            key: str(value) if isinstance(value, Path) else value
            for key, value in asdict(self).items()
        }


def run(request: Request) -> int:
    """Measures and reports; returns the exit status."""
    return reporting(request, _run)


def reporting(request: Request, measure: Callable[[Request, Console, Path], int]) -> int:
    """Calls `measure(request, console, folder)`, with what went wrong as one message.

    A SIGTERM ends the processes that were started, as Ctrl-C does.
    """
    errors = Console(stderr=True, highlight=False)
    shown = errors if request.json == "-" else parity_report.console()
    try:
        request.check_outputs()
        with tempfile.TemporaryDirectory(prefix="vllm-anvil-bench-") as folder, _ended_by_sigterm():
            return measure(request, shown, Path(folder))
    except (Refused, ValueError) as error:
        status = error.status if isinstance(error, Refused) else 2
        message = str(error)
    except (SideRefused, ChildFailed) as error:
        status, message = 1, str(error)
    except KeyboardInterrupt:
        status, message = 130, "interrupted; nothing that was started is left running"
    errors.print(f"[red]Error:[/] {escape(message)}", soft_wrap=True)
    return status


def _run(request: Request, console: Console, folder: Path) -> int:
    scenarios = scenarios_of(request.scenarios)
    sides = request.sides()
    model = request.served_model(folder)
    dtype = model.dtype(request.dtype)
    request.check_dtype(dtype)
    engine = model.engine_arguments(scenarios, dtype, request.prefix_caching)
    try:
        cost, note = model.cost(), None
    except ValueError as error:
        cost, note = None, str(error)
    runner = Runner(folder, engine, scenarios, model.vocabulary, request.seed, request.timeout_s)
    comparison = Comparison(sides, scenarios, cost, dtype)

    def document() -> dict[str, Any]:
        return {"model": model.name, "request": request.as_dict(), **comparison.as_dict()}

    def kept() -> None:
        if request.json is not None and request.json != "-":
            write(request.json, json.dumps(document(), indent=1) + "\n")

    def show() -> None:
        if request.json == "-":
            write("-", json.dumps(document(), indent=1) + "\n")
        bench_e2e_report.show(comparison, model.name, console, note)

    with telling(console) as tell:
        # A wrong baseline is noticed now, and not after the first run of anvil.
        for other in sides[1:]:
            check_platform(folder, other, request.timeout_s, tell)
        try:
            comparison.run(runner, request.repeats, tell, kept)
        finally:
            if comparison.runs:
                show()
    if request.plot is not None:
        plot.draw(comparison, model.name, Path(request.plot))
    return 1 if comparison.changed_tokens() else 0


def check_platform(folder: Path, checked: side.Side, timeout_s: float, tell: Tell) -> None:
    """Raises run.Refused where the side has another platform, and ChildFailed where it has none."""
    runner = Runner(folder, None, (), 0, 0, timeout_s)
    failure = runner.run(f"a look at {checked.name}", checked, 0, tell)[1]
    if failure is not None:
        raise failure


@contextlib.contextmanager
def telling(console: Console) -> Iterator[Tell]:
    """A line that says what is done and for how long; where nobody looks, one for each thing."""
    told, begin = "", time.monotonic()
    with console.status("", spinner="line") as status:

        def tell(words: str) -> None:
            nonlocal told, begin
            if words != told:
                told, begin = words, time.monotonic()
                if not console.is_terminal:
                    print(words, file=sys.stderr, flush=True)
            status.update(escape(f"{words} ({time.monotonic() - begin:.0f} s)"))

        yield tell


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    def end(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
