# SPDX-License-Identifier: Apache-2.0
"""Results of a parity run: as plain text, as JSON, and summed up by op."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from vllm_anvil.testing.result import SHARE_BINS, Comparison, Result


@dataclass
class OpSummary:
    """The results of one op.

    Attributes:
        cases, calls: how many were run.
        worst: the largest error as a fraction of what is allowed.
        failed: the results of the op that are wrong.
        peers: the largest error of each peer against float64, as a fraction of the same; of a peer
            that took none of the cases, None.
        apart: the largest distance between the op's results and each peer's.
        shares: elements by log2(error / allowed), for "op" and each peer; see Comparison.shares.
    """

    op: str
    cases: int = 0
    calls: int = 0
    worst: float = 0.0
    failed: list[Result] = field(default_factory=list)
    peers: dict[str, float | None] = field(default_factory=dict)
    apart: dict[str, float] = field(default_factory=dict)
    shares: dict[str, list[int]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.failed


def by_op(results: Iterable[Result]) -> list[OpSummary]:
    """One summary for each op, in the order in which they ran."""
    ops: dict[str, OpSummary] = {}
    cases: dict[str, set[str]] = {}
    for result in results:
        summary = ops.setdefault(result.op, OpSummary(result.op))
        if result.counts:
            cases.setdefault(result.op, set()).add(result.case)
            summary.cases = len(cases[result.op])
            summary.calls += 1
            summary.worst = max(summary.worst, result.worst)
            if not result.passed:
                summary.failed.append(result)
        else:
            _add_peer(summary, result)
        if result.kind != "special":
            _count(summary, result)
    return list(ops.values())


def _add_peer(summary: OpSummary, result: Result) -> None:
    name = result.implementation
    before = summary.peers.setdefault(name, None)
    if result.skipped is None:
        summary.peers[name] = max(before or 0.0, result.worst if not result.problem else math.inf)
        apart = max((c.worst for c in result.apart.values()), default=0.0)
        summary.apart[name] = max(summary.apart.get(name, 0.0), apart)


def _count(summary: OpSummary, result: Result) -> None:
    total = summary.shares.setdefault(result.implementation, [0] * (len(SHARE_BINS) + 1))
    for comparison in result.comparisons.values():
        for index, count in enumerate(comparison.shares):
            total[index] += count


def succeeded(results: Iterable[Result]) -> bool:
    """Whether no op failed. The errors of peers do not count."""
    return all(result.passed for result in results if result.counts)


def share(value: float | None) -> str:
    """An error as a fraction of what is allowed, for people."""
    if value is None:
        return "-"
    if value == 0:
        return "exact"
    if not math.isfinite(value):
        return "wrong"
    return f"{value:.2f}" if value < 10 else f"{value:.3g}"


def summary(results: Sequence[Result], failures: int = 20) -> str:
    """A table of the ops and, below it, up to that many failures, in plain text."""
    ops = by_op(results)
    rows = [("op", "cases", "calls", "worst error / allowed", "")]
    rows += [
        (o.op, str(o.cases), str(o.calls), share(o.worst), "ok" if o.passed else "FAILED")
        for o in ops
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    found = [line for o in ops for result in o.failed for line in result.failures()]
    lines += [""] * bool(found) + found[:failures]
    if len(found) > failures:
        lines.append(f"... and {len(found) - failures} more")
    wrong = sum(not o.passed for o in ops)
    lines += ["", f"{len(ops)} ops: {len(ops) - wrong} passed, {wrong} failed"]
    return "\n".join(lines)


def to_json(result: Result) -> dict[str, Any]:
    """A result as JSON has it: infinite and NaN numbers as strings, since JSON has none."""
    return _plain(asdict(result)) | {"passed": result.passed}


def from_json(data: dict[str, Any]) -> Result:
    """The result that `to_json` wrote."""

    def comparisons(found: dict[str, Any]) -> dict[str, Comparison]:
        return {name: _comparison(value) for name, value in found.items()}

    known = {name: value for name, value in data.items() if name != "passed"}
    known["comparisons"] = comparisons(known["comparisons"])
    known["apart"] = comparisons(known["apart"])
    return Result(**known)


def _comparison(data: dict[str, Any]) -> Comparison:
    numbers = ("worst", "error", "actual", "expected")
    data = data | {n: float(data[n]) if isinstance(data[n], str) else data[n] for n in numbers}
    data["where"] = None if data["where"] is None else tuple(data["where"])
    data["shares"] = tuple(data["shares"])
    return Comparison(**data)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value
