# SPDX-License-Identifier: Apache-2.0
"""The process in which a user's implementation is checked; `checking` starts it.

Arguments: the file with the task, and the descriptor to which messages go as lines of JSON. What
the implementation prints goes elsewhere.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
from pathlib import Path
from typing import Any

from .checking import Outcome, Status, check_layer, check_problem, outcome_of
from .devices import open_device
from .implementations import Candidate, resolve


def main(task: Path, descriptor: int) -> None:
    """Checks each problem and tells what became of it."""

    def tell(**message: Any) -> None:
        os.write(descriptor, json.dumps(message).encode() + b"\n")

    def conclude(outcome: Outcome, **more: Any) -> None:
        tell(status=outcome.status.value, message=outcome.message, **more)

    candidate, device_name, problems, seed = pickle.loads(task.read_bytes())
    device = open_device(device_name)
    tell(step="while it was imported")
    try:
        implementation = resolve(Candidate(**candidate), device)
    except (ImportError, TypeError, ValueError) as error:
        conclude(Outcome(Status.MISSING, str(error)), all=True)
        return
    except Exception as error:
        conclude(outcome_of(error), all=True)
        return
    layers: dict[Any, Outcome] = {}
    for problem in problems:
        if problem.spec not in layers:
            tell(step=f"on small batches of {problem.shape}")
            layers[problem.spec] = check_layer(implementation, problem, device)
        outcome = layers[problem.spec]
        if outcome.status is Status.PASSED:
            tell(step=f"on {problem.label}")
            outcome = check_problem(implementation, problem, device, seed)
        conclude(outcome)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main(Path(sys.argv[1]), int(sys.argv[2]))
