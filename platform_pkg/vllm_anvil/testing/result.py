# SPDX-License-Identifier: Apache-2.0
"""What came out of calls. Needs nothing but Python, so that reports need no more."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

# The name under which the engine's own kernels are peers.
ENGINE = "engine"

# Elements are counted by log2(error / allowed): one bin for exact ones and those below the range,
# one per power of two, one for those above it.
SHARE_BINS = tuple(range(-16, 5))


@dataclass(frozen=True)
class Comparison:
    """How one result differs from what is expected.

    Attributes:
        worst: the largest error as a fraction of what is allowed: above 1 is too far. Infinite for
            a value that is NaN or infinite where another is expected, or the other way round.
        error: the largest absolute error.
        where: index of the worst element, or None where all are exact.
        problem: what is wrong besides values, such as a shape; None: nothing.
        actual: the worst element; None where all are exact.
        expected: what it should have been.
        shares: number of elements by log2(error / allowed): up to SHARE_BINS[0], between each of
            them and the next, above the last.
    """

    worst: float
    error: float
    where: tuple[int, ...] | None
    problem: str | None = None
    actual: float | None = None
    expected: float | None = None
    shares: tuple[int, ...] = ()

    @property
    def passed(self) -> bool:
        return self.problem is None and self.worst <= 1.0

    def __str__(self) -> str:
        if self.problem is not None:
            return self.problem
        if self.where is None:
            return "exact"
        place = f"[{', '.join(map(str, self.where))}]"
        return (
            f"element {place} is {self.actual!r} instead of {self.expected!r}, "
            f"{self.worst:.3g} times what is allowed"
        )


def failed(problem: str) -> Comparison:
    """The comparison of a result that has no values to compare."""
    return Comparison(math.inf, math.inf, None, problem)


@dataclass(frozen=True)
class Result:
    """What became of one call.

    Attributes:
        op: its qualified name.
        variant: a layout of vllm_anvil.testing.layouts, "mixed" (a different one for each
            argument), "permuted" (rows of the batch in another order) or "refused" (a call that
            must raise).
        implementation: "op", or the name of a peer.
        comparisons: with float64, by result.
        problem: an exception, or an effect that the call must not have.
        skipped: why a peer was not asked.
        apart: of a peer: how far the op's results are from the peer's, by result.
    """

    op: str
    case: str
    kind: str
    variant: str
    implementation: str
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    problem: str | None = None
    skipped: str | None = None
    apart: dict[str, Comparison] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Whether a failure is the op's: a peer's own error is only shown."""
        return self.implementation == "op"

    @property
    def passed(self) -> bool:
        return self.problem is None and all(c.passed for c in self.comparisons.values())

    @property
    def worst(self) -> float:
        """The largest error as a fraction of what is allowed."""
        return max((c.worst for c in self.comparisons.values()), default=0.0)

    def failures(self) -> list[str]:
        """One sentence for each thing that is wrong: op, case, variant, what."""
        place = f"{self.op}, {self.case}, {self.variant}"
        if not self.counts:
            place += f", {self.implementation}"
        found = [] if self.problem is None else [self.problem]
        found += [f"{name}: {c}" for name, c in self.comparisons.items() if not c.passed]
        return [f"{place}: {one}" for one in found]
