# SPDX-License-Identifier: Apache-2.0
"""Stat loggers of these tests, which make mistakes."""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase


class BreaksWhenRecording(StatLoggerBase):
    """Once a request has come."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

    def log_engine_initialized(self) -> None: ...

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        if iteration_stats is not None:
            raise RuntimeError("a mistake in the plugin's record")


class BreaksWhenMade(BreaksWhenRecording):
    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        raise RuntimeError("a mistake in the plugin's constructor")
