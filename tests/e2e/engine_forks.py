# SPDX-License-Identifier: Apache-2.0
"""Engines one after the other, each in a process that is forked: the engine is imported once for
all of them."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run_each(jobs_path: str, results: str, run: Callable[[str, dict[str, Any]], Any]) -> None:
    """Writes `run(name, job)` to RESULTS/name.json for each job of the file {name: job}. Raises
    SystemExit, which names the engine, where one fails."""
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
            Path(results, f"{name}.json").write_text(json.dumps(run(name, job)))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        raise SystemExit(0)
