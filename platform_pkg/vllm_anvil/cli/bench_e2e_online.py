# SPDX-License-Identifier: Apache-2.0
"""`vllm-anvil bench e2e --online`: latencies of servers under load."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_anvil.bench import online
from vllm_anvil.bench.online import Answer, Load, OnlineRunner
from vllm_anvil.bench.scenario import Kind, Scenario
from vllm_anvil.cli.bench_e2e_run import Request, check_platform, reporting, telling
from vllm_anvil.cli.output_file import write

RATES = (1.0, 2.0, 4.0)


def run(request: Request, load: Load) -> int:
    """Measures and reports; returns the exit status: 1 also where a request was not answered."""
    return reporting(request, lambda *arguments: _run(load, *arguments))


def _run(load: Load, request: Request, console: Console, folder: Path) -> int:
    if min(load.rates) <= 0:
        raise ValueError("--rate: requests come at more than 0 a second")
    if request.shape is not None:
        raise ValueError("--online makes its prompts with a tokenizer: give a --model, no --shape")
    for option, given in (("--scenario", request.scenarios), ("--plot", request.plot)):
        if given:
            raise ValueError(f"{option} is not for --online, whose load is --rate, --requests, ...")
    sides = request.sides()
    model = request.served_model(folder)
    dtype = model.dtype(request.dtype)
    request.check_dtype(dtype)
    # As many as could be in flight at once.
    largest = Scenario("online", Kind.DECODE, load.requests, load.input_tokens, load.output_tokens)
    engine = model.engine_arguments([largest], dtype, request.prefix_caching)
    # The client's prompts may be some tokens longer than they were to be.
    engine["max_model_len"] += max(16, load.input_tokens // 8)
    runner = OnlineRunner(folder, model.folder, engine, load, request.seed, request.timeout_s)
    answers: list[Answer] = []

    def document() -> dict[str, Any]:
        return {
            "model": model.name,
            "dtype": dtype,
            "request": request.as_dict(),
            "load": asdict(load) | {"rates": [f"{rate:g}" for rate in load.rates]},
            "answers": [asdict(one) | {"rate": f"{one.rate:g}"} for one in answers],
        }

    def kept(answer: Answer) -> None:
        answers.append(answer)
        if request.json is not None and request.json != "-":
            write(request.json, json.dumps(document(), indent=1) + "\n")

    with telling(console) as tell:
        for side in sides:
            check_platform(folder, side, request.timeout_s, tell)
        try:
            runner.run(sides, request.repeats, tell, kept)
        finally:
            if answers:
                _show(answers, f"{model.name}, {dtype}", load, [s.name for s in sides], console)
    if request.json == "-":
        write("-", json.dumps(document(), indent=1) + "\n")
    return 1 if any(answer.failed for answer in answers) else 0


def _show(
    answers: list[Answer], title: str, load: Load, names: list[str], console: Console
) -> None:
    table = Table(
        title=f"{title}: {load.requests} requests of {load.input_tokens} + {load.output_tokens} "
        "tokens at each rate",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("Requests/s", justify="right")
    table.add_column("Milliseconds")
    for name in names:
        table.add_column(name, justify="right")
        table.add_column("+-", justify="right")
    if len(names) > 1:
        table.add_column("Ratio", justify="right")
    for rate in load.rates:
        for metric in online.METRICS:
            found, ratio = online.figures(answers, rate, metric)
            cells = [f"{rate:g}", metric]
            for name in names:
                one = found.get(name)
                several = one is not None and len(one.values) > 1
                cells.append("-" if one is None else f"{one.median * 1e3:.1f}")
                cells.append(f"{one.spread:.0%}" if one is not None and several else "-")
            if len(names) > 1:
                cells.append("-" if ratio is None else f"{ratio:.2f}x")
            table.add_row(*map(escape, cells))
        table.add_section()
    console.print(table)
    for answer in answers:
        if answer.failed:
            console.print(
                f"[red]x[/] {escape(answer.side)}, run {answer.repeat + 1}, {answer.rate:g} "
                f"requests a second: {answer.failed} of {load.requests} were not answered",
                soft_wrap=True,
            )
