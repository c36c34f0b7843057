# SPDX-License-Identifier: Apache-2.0
"""What VLLM_BATCH_INVARIANT=1 costs: decode steps with it over those without, in turn.

    python benchmarks/batch_invariance.py [--model DIR] [--repeats 3] [--batches 8 32]

Prints, for each size of batch, the median step of both and the throughput with the mode as a share
of that without. Each repeat starts an engine with and one without, in alternating order, on the
same prompts.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
from pathlib import Path

from vllm_anvil.bench import side
from vllm_anvil.bench.run import Runner
from vllm_anvil.bench.scenario import scenarios_of
from vllm_anvil.bench.served_model import ServedModel
from vllm_anvil.cli.bench_e2e import DEMO_MODEL

MODES = ("0", "1")
PROMPT, TOKENS = 128, 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32])
    arguments = parser.parse_args()

    scenarios = scenarios_of(tuple(f"decode:{n}x{PROMPT}+{TOKENS}" for n in arguments.batches))
    model = ServedModel.from_folder(arguments.model)
    dtype = model.dtype("auto")
    steps: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        engine = model.engine_arguments(scenarios, dtype, False)
        runner = Runner(Path(folder), engine, scenarios, model.vocabulary, 0, 1800.0)
        for repeat in range(arguments.repeats):
            for mode in MODES if repeat % 2 == 0 else MODES[::-1]:
                anvil = side.anvil()
                environment = {**anvil.environment, "VLLM_BATCH_INVARIANT": mode}
                what = f"repeat {repeat + 1} of {arguments.repeats}, VLLM_BATCH_INVARIANT={mode}"
                print(what, file=sys.stderr, flush=True)
                run, failure = runner.run(
                    what,
                    dataclasses.replace(anvil, environment=environment),
                    repeat,
                    lambda _: None,
                )
                if failure is not None:
                    raise SystemExit(f"error: {failure}")
                for scenario in scenarios:
                    measured = run.found["scenarios"][scenario.name]["steps_s"]
                    steps.setdefault((scenario.name, mode), []).append(statistics.median(measured))
    print(f"{model.name}, {dtype}: decode steps on {PROMPT} to {PROMPT + TOKENS} tokens")
    for scenario in scenarios:
        without, within = (steps[scenario.name, mode] for mode in MODES)
        shares = [one / other for one, other in zip(without, within, strict=True)]
        print(
            f"{scenario.batch:3} requests: {statistics.median(without) * 1e3:.2f} ms without, "
            f"{statistics.median(within) * 1e3:.2f} ms with, throughput "
            f"{statistics.median(shares):.1%} ({min(shares):.1%} to {max(shares):.1%})"
        )


if __name__ == "__main__":
    main()
