# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of many seeds, on all cores: `python -m fuzz 10000 [first seed]`.

Exits with 1 where a program fails; the failing program is stored, made small where that is cheap.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).resolve().parents[3]
STORED = ROOT / "build" / "fuzz-triton"
# Programs of one process: what a process has compiled stays in its memory.
CHUNK = 250


@dataclass
class Outcome:
    """Of all programs: how many there were of each kind, and the failing ones."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def worker(first: int, count: int) -> None:
    """Runs programs and prints a line of JSON before and after each."""
    from fuzz import compare, source
    from fuzz.generate import generate
    from fuzz.minimize import minimize

    def say(**facts: object) -> None:
        print(json.dumps(facts), flush=True)

    for seed in range(first, first + count):
        say(seed=seed)
        program = generate(seed)
        found = compare.failure(program)
        facts: dict[str, object] = {"seed": seed, "failure": found}
        if found is not None:
            small = minimize(program, found)
            facts["source"] = source.kernel_source(program)
            facts["small"] = source.kernel_source(small)
            facts["grid"] = small.grid
        say(**facts)


def _chunks(first: int, count: int) -> Iterator[tuple[int, int]]:
    for start in range(first, first + count, CHUNK):
        yield start, min(CHUNK, first + count - start)


def _run_chunk(start: int, count: int, finished: Queue[dict]) -> None:
    """A process for the chunk, and another for what is left of it where one dies."""
    end = start + count
    while start < end:
        command = [sys.executable, "-m", "fuzz", "--worker", str(end - start), str(start)]
        with (
            tempfile.TemporaryDirectory() as cache,
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "TRITON_CACHE_DIR": cache},
            ) as process,
        ):
            assert process.stdout is not None
            current: int | None = None
            for line in process.stdout:
                try:
                    facts = json.loads(line)
                except ValueError:
                    continue  # what a kernel or a library prints
                if "failure" in facts:
                    finished.put(facts)
                    start, current = facts["seed"] + 1, None
                else:
                    current = facts["seed"]
        if process.returncode == 0:
            return
        died = start if current is None else current
        finished.put(
            {"seed": died, "failure": f"crash: the process ended with {process.returncode}"}
        )
        start = died + 1


def fuzz(first: int, count: int, jobs: int) -> Outcome:
    """The programs of `count` seeds from `first` on, in so many processes at a time."""
    console = Console()
    outcome = Outcome()
    finished: Queue[dict] = Queue()
    chunks = iter(list(_chunks(first, count)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                chunk = next(chunks, None)
            if chunk is None:
                return
            _run_chunk(*chunk, finished)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(jobs)]
    for thread in workers:
        thread.start()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("random programs", total=count)
        for _ in range(count):
            facts = finished.get()
            progress.advance(task)
            failure = facts["failure"]
            outcome.counts["right" if failure is None else "wrong"] += 1
            if failure is not None:
                outcome.failures.append(_store(facts))
                console.print(f"[red]seed {facts['seed']}[/]: {failure}")
                console.print(facts.get("small", ""), highlight=False, markup=False)
                progress.update(task, description=f"[red]{len(outcome.failures)} failed[/]")
    return outcome


def _store(facts: dict) -> str:
    """A module with the small program, and one with the whole."""
    STORED.mkdir(parents=True, exist_ok=True)
    seed = facts["seed"]
    heading = f"# Seed {seed}, grid {facts.get('grid')}. {facts['failure']}\n"
    for part, name in (("small", f"seed_{seed}.py"), ("source", f"seed_{seed}_whole.py")):
        (STORED / name).write_text(heading + facts.get(part, ""))
    return str(STORED / f"seed_{seed}.py")


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=10000)
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.first, given.count)
        return 0
    outcome = fuzz(given.first, given.count, given.jobs)
    counts = outcome.counts
    last = given.first + given.count - 1
    print(f"{counts['right']} of {given.count} programs right (seeds {given.first} to {last})")
    for path in outcome.failures:
        print(f"failed: {path}")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
