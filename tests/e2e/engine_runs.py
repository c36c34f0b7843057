# SPDX-License-Identifier: Apache-2.0
"""Runs engines one after the other: `python engine_runs.py JOBS.json FOLDER`.

JOBS: {name: a job of engine_run.py}. For each FOLDER/name.json: its result. Each engine has a
process of its own, which is forked: so the engine is imported once for all.
"""

from __future__ import annotations

import sys

from engine_forks import run_each
from engine_run import run


def main(jobs_path: str, results: str) -> None:
    run_each(jobs_path, results, lambda name, job: run(job))


if __name__ == "__main__":
    main(*sys.argv[1:])
