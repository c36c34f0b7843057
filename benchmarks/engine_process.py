# SPDX-License-Identifier: Apache-2.0
"""An engine in a process of its own, for benchmarks that ask two in turn.

A benchmark is started a second time with `--serve JOB`; it then answers lines of stdin through
`reply`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

# Log-probabilities of the best two tokens that are closer than this may change places.
TIE = 0.02


def reply(result: Any) -> None:
    """Answers the process that asked."""
    print(f"reply {json.dumps(result)}", flush=True)


class EngineProcess:
    """A process that runs a benchmark's engine; it is ready once this returns."""

    def __init__(self, script: str, job: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, script, "--serve", json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("reply "):
                return json.loads(line.removeprefix("reply "))
        raise SystemExit("an engine ended before its answer; its messages are above")

    def ask(self, what: str) -> Any:
        """The answer to one line."""
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self.process.communicate()


def answers(outputs: Iterable[Any]) -> list[dict[str, Any]]:
    """Of requests with `logprobs=2`: the tokens, and how far before each the best two are apart."""
    found = []
    for (one,) in (output.outputs for output in outputs):
        best = [sorted(e.logprob for e in entry.values()) for entry in one.logprobs or []]
        margins = [values[-1] - values[-2] for values in best]
        found.append({"tokens": list(one.token_ids), "margins": margins})
    return found


def check(what: str, expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    """Raises SystemExit where two sets of `answers` part at no tie."""
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        pairs = zip(one["tokens"], other["tokens"], strict=True)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if first is not None and one["margins"][first] > TIE:
            raise SystemExit(
                f"{what}, prompt {number}: token {first} differs, where the best two are "
                f"{one['margins'][first]:.3f} apart"
            )
