# SPDX-License-Identifier: Apache-2.0
"""The ways in which requests meet others, each in an engine of its own, and what they gave."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_anvil.bench.child_process import Child
from vllm_anvil.bench.invariance_requests import CHUNKS, Ask, Batch, draw_batches, draw_sizes
from vllm_anvil.bench.run import HERE, Refused, Tell
from vllm_anvil.bench.side import Side

BLOCK = 16
WAYS = ("graphs", "chunks", "eager", "prefix-caching", "pre-emption", "tensor-parallel")
# What of the first way's number of batches the others get.
SHARE = 4


@dataclass(frozen=True)
class Way:
    """How requests are served, and which of them together.

    Attributes:
        arguments: of vllm.LLM, beside those of all ways.
        own_reference: whether requests alone give other results than in the first way.
    """

    name: str
    arguments: Mapping[str, Any]
    batches: Sequence[Batch]
    own_reference: bool = False


@dataclass(frozen=True)
class Found:
    """A request that did not give what it gives alone.

    Attributes:
        batch: its number among the way's, and `size` that of its requests.
        target: number of the request.
        token: the first of its output whose token or log-probabilities are others; None: only those
            of its prompt are.
        tokens_differ: whether tokens are others, and not log-probabilities alone.
    """

    way: str
    batch: int
    size: int
    target: int
    token: int | None
    tokens_differ: bool


@dataclass
class Outcome:
    """What one way gave."""

    way: Way
    compared: int = 0
    pre_emptions: int = 0
    cached: int = 0
    differing: list[Found] = field(default_factory=list)


@dataclass(frozen=True)
class Check:
    """A model, and all that is asked of it.

    Attributes:
        engine: arguments of vllm.LLM in all ways.
        longest: tokens of a prompt, at most; `tokens`: of an output.
    """

    folder: Path
    side: Side
    engine: Mapping[str, Any]
    targets: Sequence[Ask]
    vocabulary: int
    longest: int
    tokens: int
    largest: int
    timeout_s: float
    seed: str

    def ways(self, names: Sequence[str], combinations: int, devices: int) -> Iterator[Way]:
        """Those of these names, in the order of WAYS; tensor parallelism where there are devices
        for it."""
        each = -(-(self.longest + self.tokens) // BLOCK)
        few = max(each + 2, self.largest * each // 8)
        arguments: dict[str, dict[str, Any]] = {
            "graphs": {},
            "chunks": {},
            "eager": {"enforce_eager": True},
            "prefix-caching": {"enable_prefix_caching": True},
            "pre-emption": {"num_gpu_blocks_override": few},
            "tensor-parallel": {"tensor_parallel_size": 2},
        }
        for name in WAYS:
            if name not in names or (name == "tensor-parallel" and devices < 2):
                continue
            count = combinations if name == "graphs" else math.ceil(combinations / SHARE)
            # Enough at once that some must make room.
            sizes = draw_sizes(f"{self.seed}/{name}", max(count, 2), self.largest)
            if name == "pre-emption":
                sizes = [max(size, self.largest // 2) for size in sizes]
            batches = draw_batches(
                f"{self.seed}/{name}",
                self.targets,
                self.vocabulary,
                self.longest,
                sizes,
                CHUNKS if name == "chunks" else (0,),
            )
            yield Way(name, arguments[name], batches, name == "tensor-parallel")

    def serve(
        self, way: Way, alone: list[dict[str, Any]] | None, tell: Tell
    ) -> tuple[list[dict[str, Any]], Outcome]:
        """The targets' outputs alone, asked for first where they are not given, and the way's
        batches, compared with them. Raises Refused and ChildFailed."""
        job = self._job(way) | {"batches": [dataclasses.asdict(one) for one in way.batches]}
        if alone is None:
            job["alone"] = [dataclasses.asdict(one) for one in self.targets]
        found = self._run(way.name, job, tell)
        if alone is None:
            alone = found["alone"]
        outcome = Outcome(way, pre_emptions=found["pre_emptions"], cached=found["cached"])
        for number, (batch, outputs) in enumerate(zip(way.batches, found["batches"], strict=True)):
            for target, output in zip(batch.targets, outputs, strict=True):
                if target is None:
                    continue
                outcome.compared += 1
                if output != alone[target]:
                    token, tokens_differ = _first(alone[target], output)
                    size = len(batch.asks)
                    outcome.differing.append(
                        Found(way.name, number, size, target, token, tokens_differ)
                    )
        return alone, outcome

    def trace(self, way: Way, found: Found, tell: Tell) -> dict[str, Any]:
        """Runs the request alone and in its batch, op by op on one device: {"difference": the first
        op that gave something else, or None, "reproduced": whether the outputs differ so, too}."""
        batch = way.batches[found.batch]
        watched = dataclasses.replace(
            batch, targets=[0 if one == found.target else None for one in batch.targets]
        )
        arguments = {
            **way.arguments,
            "enforce_eager": True,
            "async_scheduling": False,
            "tensor_parallel_size": 1,
        }
        job = self._job(way) | {
            "engine": {**self.engine, **arguments},
            "alone": [dataclasses.asdict(self.targets[found.target])],
            "batches": [dataclasses.asdict(watched)],
            "trace": True,
        }
        result = self._run(f"{way.name}, op by op", job, tell)
        outputs = [one for one in result["batches"][0] if one is not None]
        reproduced = outputs != result["alone"]
        return {"difference": result["difference"], "reproduced": reproduced}

    def _job(self, way: Way) -> dict[str, Any]:
        engine = {**self.engine, **way.arguments}
        return {
            "expect": self.side.expect,
            "absent": self.side.absent,
            "engine": engine,
            "alone": [],
            "batches": [],
            "trace": False,
        }

    def _run(self, what: str, job: dict[str, Any], tell: Tell) -> dict[str, Any]:
        result, file = self.folder / "result.json", self.folder / "job.json"
        result.unlink(missing_ok=True)
        file.write_text(json.dumps(job | {"result": str(result)}))
        command = [self.side.python, "-P", str(HERE / "invariance_child.py"), str(file)]
        found: dict[str, Any] = {}

        def read() -> None:
            if result.exists():
                found.update(json.loads(result.read_text()))
            child.doing = found.get("doing", "")
            tell(f"{what}: {child.doing}")

        with Child(what, command, self.side.environment, self.folder / "log") as child:
            child.wait(self.timeout_s, read, each_step=True)
            read()
            if "refused" in found:
                raise Refused(f"{what}: {found['refused']}")
            if "batches" not in found:
                raise child.failure("ended without a result")
        return found


def _first(alone: Mapping[str, Any], together: Mapping[str, Any]) -> tuple[int | None, bool]:
    """Number of the first output token with another token or log-probability, and whether tokens
    are others."""
    tokens_differ = alone["tokens"] != together["tokens"]
    for number, token in enumerate(alone["tokens"]):
        same = together["tokens"][number : number + 1] == [token]
        probabilities = (one["logprobs"][number : number + 1] for one in (alone, together))
        if not same or len({json.dumps(one, sort_keys=True) for one in probabilities}) > 1:
            return number, tokens_differ
    return None, tokens_differ
