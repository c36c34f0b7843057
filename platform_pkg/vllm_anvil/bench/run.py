# SPDX-License-Identifier: Apache-2.0
"""One run of one side: its process, and what it reported."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vllm_anvil.bench.child_process import Child, ChildFailed
from vllm_anvil.bench.model_cost import Ceilings
from vllm_anvil.bench.scenario import Kind, Scenario
from vllm_anvil.bench.side import Side

HERE = Path(__file__).parent
CEILING_TIMEOUT_S = 120.0

# Told what is being done.
Tell = Callable[[str], None]


class Refused(Exception):
    """A side is not what it was to be; the message says why, and what would help."""


@dataclass
class Run:
    """What one process of a side found.

    Attributes:
        side: its name.
        repeat: counted from 0; both sides of a repeat are given the same prompts.
        found: the process's report (engine_child.py), or as much of it as there is.
        ceilings: measured just before and just after.
    """

    side: str
    repeat: int
    found: dict[str, Any]
    ceilings: list[Ceilings] = field(default_factory=list)

    def value(self, scenario: Scenario) -> float | None:
        """Seconds of a step, of a prefill or of the start; bytes of memory; None: not measured."""
        if scenario.kind is Kind.START_UP:
            start_up = self.found.get("start_up")
            return start_up and float(start_up["total_s"])
        if scenario.kind is Kind.MEMORY:
            peaks = self.found.get("peak_memory")
            return peaks and float(sum(peaks.values()))
        measured = self._scenario(scenario)
        return None if measured is None else float(measured["seconds"])

    def tokens(self, scenario: Scenario) -> list[list[int]] | None:
        """Of each request of a scenario."""
        measured = self._scenario(scenario)
        return None if measured is None else measured["tokens"]

    def _scenario(self, scenario: Scenario) -> dict[str, Any] | None:
        return self.found.get("scenarios", {}).get(scenario.name)

    @property
    def ceiling(self) -> Ceilings | None:
        """The mean of those before and after."""
        if not self.ceilings:
            return None
        return Ceilings(
            statistics.fmean(one.read for one in self.ceilings),
            statistics.fmean(one.arithmetic for one in self.ceilings),
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON, without the tokens."""
        found = {key: value for key, value in self.found.items() if key != "check"}
        found["scenarios"] = {
            name: {key: value for key, value in one.items() if key != "tokens"}
            for name, one in found.get("scenarios", {}).items()
        }
        ceilings = [asdict(one) for one in self.ceilings]
        return {"side": self.side, "repeat": self.repeat, "ceilings": ceilings, **found}


@dataclass(frozen=True)
class Runner:
    """Starts the processes.

    Args:
        folder: for their files.
        engine: arguments of vllm.LLM for both sides; None: platforms are looked at, no more.
        timeout_s: of one process.
        child: what is run; another file beside this one than engine_child.py needs this package.
    """

    folder: Path
    engine: Mapping[str, Any] | None
    scenarios: Sequence[Scenario]
    vocabulary: int
    seed: int
    timeout_s: float
    child: str = "engine_child.py"

    def run(self, what: str, side: Side, repeat: int, tell: Tell) -> tuple[Run, ChildFailed | None]:
        """What the process found, and how it failed, if it did. Raises Refused."""
        result, job = self.folder / "result.json", self.folder / "job.json"
        result.unlink(missing_ok=True)
        job.write_text(
            json.dumps(
                {
                    "result": str(result),
                    "started": time.monotonic(),
                    "expect": side.expect,
                    "absent": side.absent,
                    "engine": None if self.engine is None else {**self.engine, **side.arguments},
                    "vocabulary": self.vocabulary,
                    "seed": f"{self.seed}/{repeat}",
                    "scenarios": [asdict(s) for s in self.scenarios if s.runs_requests],
                }
            )
        )
        # -P: the child's folder, with our modules' names in it, stays out of its module path.
        command = [side.python, "-P", str(HERE / self.child), str(job)]
        failed = None
        with Child(what, command, side.environment, self.folder / "log") as child:

            def look() -> None:
                child.doing = _report(result).get("doing", "")
                tell(f"{what}: {child.doing}")

            try:
                child.wait(self.timeout_s, look)
            except ChildFailed as error:
                failed = error
        found = _report(result)
        if "refused" in found:
            raise Refused(f"{side.name}: {found['refused']}")
        if failed is None and "platform" not in found:
            failed = child.failure("ended without a result")
        return Run(side.name, repeat, found), failed

    def measure_ceilings(self, side: Side, dtype: str) -> Ceilings:
        """In a process of the side that has this package. Raises ChildFailed."""
        result = self.folder / "ceilings.json"
        command = [side.python, "-P", "-m", "vllm_anvil.bench.ceiling_child", dtype, str(result)]
        log = self.folder / "ceilings.log"
        with Child("the measurement of ceilings", command, side.environment, log) as child:
            child.wait(CEILING_TIMEOUT_S)
        return Ceilings(**json.loads(result.read_text()))


def _report(path: Path) -> dict[str, Any]:
    """It is replaced as a whole, so that it can be read at any time."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found
