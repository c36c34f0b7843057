# SPDX-License-Identifier: Apache-2.0
"""Runs engines one after the other: `python engine_runs.py JOBS.json FOLDER`.

JOBS: {name: a job of engine_run.py}. For each FOLDER/name.json: its result. Each engine has a
process of its own, which is forked: so the engine is imported once for all.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

from engine_run import run


def main(jobs_path: str, results: str) -> None:
    # For all of them.
    import vllm.v1.engine.async_llm
    import vllm.v1.worker.gpu_worker  # noqa: F401
    from vllm import LLM  # noqa: F401

    for name, job in json.loads(Path(jobs_path).read_text()).items():
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            if status != 0:
                raise SystemExit(f"the engine of {name} failed: {status}")
            continue
        try:
            Path(results, f"{name}.json").write_text(json.dumps(run(job)))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        raise SystemExit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
