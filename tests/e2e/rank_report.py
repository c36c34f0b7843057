# SPDX-License-Identifier: Apache-2.0
"""What a rank of an engine knows of itself: `worker_extension_cls="rank_report.RankReport"`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch


class RankReport:
    """Methods that the engine's workers get, to be called by `collective_rpc`."""

    device: torch.device
    model_runner: Any
    rank: int

    def count_steps(self) -> None:
        """From now on counts how often the model's Python runs, and how often a graph is run."""
        runner = self.model_runner
        self.forwards = self.replays = 0

        def count_forward(*_: Any) -> None:
            self.forwards += 1

        runner.get_model().register_forward_pre_hook(count_forward)
        run = runner.cudagraph_manager.run_fullgraph

        def count_replay(*arguments: Any, **keywords: Any) -> Any:
            self.replays += 1
            return run(*arguments, **keywords)

        runner.cudagraph_manager.run_fullgraph = count_replay

    def write_report(self, folder: str) -> None:
        """Writes one file for this rank."""
        threads = {}
        for task in Path("/proc/self/task").iterdir():
            name = (task / "comm").read_text().strip()
            threads[f"{name} {task.name}"] = sorted(os.sched_getaffinity(int(task.name)))
        report = {
            "rank": self.rank,
            "device": str(self.device),
            "cores": list(torch.anvil.get_device_properties(self.device).cores),
            "main_thread": sorted(os.sched_getaffinity(os.getpid())),
            "threads": threads,
            "forwards": self.forwards,
            "replays": self.replays,
        }
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(report))
