# SPDX-License-Identifier: Apache-2.0
"""The process in which `vllm-anvil parity` runs ops: one for each instruction set.

`python -m vllm_anvil.cli.parity_child` reads a Plan as JSON from standard input and writes one JSON
object per line to standard output: what it found, each case before it runs, each result. What ops
print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from vllm_anvil.cli.ready_device import ReadyDevice, Refused

Send = Callable[..., None]


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        device: a device of torch.
        isa: the instruction set that must be active, or None for whichever is.
        ops: names; none: all.
        text: only cases with this in "op case".
        engine: whether to run the engine's kernels too.
        replay: a recording to run instead of the tables' cases.
        skip: (op, case) that are not to be run; case "*": none of the op's.
        only_facts: run nothing.
    """

    device: str
    isa: str | None = None
    ops: tuple[str, ...] = ()
    text: str = ""
    engine: bool = True
    replay: str | None = None
    skip: tuple[tuple[str, str], ...] = ()
    only_facts: bool = False

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        plan = {f.name: data[f.name] for f in fields(cls)}
        skip = tuple((op, case) for op, case in plan["skip"])
        return cls(**plan | {"ops": tuple(plan["ops"]), "skip": skip})


def carry_out(plan: Plan, send: Send) -> None:
    """Runs the plan. Raises Refused if it cannot be carried out at all."""
    device = ReadyDevice(plan.device)
    device.require(plan.isa)
    if plan.only_facts:
        send("facts", isa=device.isa, isas=device.isas, native_missing=device.native_missing)
        return

    from vllm_anvil.testing import parity, registry, replay, report

    found = registry.load()
    recorded: dict[tuple[str, str], Any] = {}
    try:
        chosen = found.choose(plan.ops)
        if plan.replay is not None:
            calls = _recorded_calls(plan.replay)
            names = {op.name for op in chosen} | {op.qualified_name for op in chosen}
            ops = replay.ops_of(calls, found.ops)
            chosen = [op for op in ops if op.qualified_name in names]
            cases = {f"call {number}": call for number, call in enumerate(calls)}
            recorded = {
                (op.qualified_name, c.name): cases[c.name] for op in chosen for c in op.cases
            }
    except LookupError as error:
        raise Refused(str(error.args[0])) from None
    skip = set(plan.skip)

    def named(op: Any, case: Any) -> bool:
        return plan.text in f"{op.qualified_name} {case.name}"

    def wanted(op: Any, case: Any) -> bool:
        name = op.qualified_name
        return named(op, case) and not {(name, case.name), (name, "*")} & skip

    peers, engine_missing = _engine(plan)
    send(
        "ready",
        isa=device.isa,
        native_missing=device.native_missing,
        engine_missing=engine_missing,
        implementations={
            op.qualified_name: device.implementation(parity.implementation_of(op, plan.device))
            for op in chosen
        },
        distributions={op.qualified_name: found.distributions[op.qualified_name] for op in chosen},
        total=sum(named(op, case) for op in chosen for case in op.cases),
        problems=[vars(problem) for problem in found.problems],
    )

    def started(op: Any, case: Any) -> None:
        send("start", op=op.qualified_name, case=case.name, kind=case.kind)

    def results() -> Iterator[parity.Result]:
        if plan.replay is None:
            yield from parity.check_all(chosen, plan.device, peers, wanted, started)
            return
        for op in chosen:
            for case in op.cases:
                if wanted(op, case):
                    started(op, case)
                    before = recorded[op.qualified_name, case.name].results
                    yield from replay.check_recorded(op, case, before, plan.device)

    for result in results():
        send("result", result=report.to_json(result))
    send("done")


def _recorded_calls(path: str) -> list[Any]:
    from vllm_anvil.testing import recording

    try:
        return list(recording.load(path).calls)
    except Exception as error:
        raise Refused(f"{path} cannot be replayed: {type(error).__name__}: {error}") from None


def _engine(plan: Plan) -> tuple[dict[str, Any], str | None]:
    if not plan.engine:
        return {}, None
    from vllm_anvil.testing import engine_peers

    try:
        return engine_peers.peers(), None
    except engine_peers.EngineUnavailable as error:
        return {}, str(error)


def main() -> None:
    """Reads the plan, carries it out, and says so."""
    stream = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def send(event: str, **values: Any) -> None:
        stream.write(json.dumps({"event": event, **values}) + "\n")

    plan = Plan.from_json(json.load(sys.stdin))
    try:
        carry_out(plan, send)
    except Refused as error:
        send("refused", message=str(error))


if __name__ == "__main__":
    main()
