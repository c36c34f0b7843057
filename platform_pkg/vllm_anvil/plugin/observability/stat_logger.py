# SPDX-License-Identifier: Apache-2.0
"""The engine's stat logger plugin `anvil_stats`: device figures in `/metrics` and in the log.

The engine loads it in the front end of every `AsyncLLM`, of `vllm serve` too, unless VLLM_PLUGINS
leaves it out. On another platform it does nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import prometheus_client
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.metrics.loggers import StatLoggerBase

from vllm_anvil.plugin.observability.pages import Figures, PageReader, readers

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger("vllm.plugins.anvil.stats")

LABELS = ("model_name", "engine", "device")

# Name in /metrics without "anvil:", by attribute of Figures.
GAUGES = {
    "memory_allocated": ("memory_allocated_bytes", "Memory of the device that tensors hold."),
    "memory_reserved": ("memory_reserved_bytes", "Memory that the device holds from the host."),
    "memory_limit": ("memory_limit_bytes", "The device's hard limit of memory."),
}
COUNTERS = {
    "steps": ("steps", "Forward passes of the engine on the device."),
    "tokens": ("tokens", "Tokens in these forward passes."),
    "graph_replays": ("graph_replays", "Graphs that were replayed in these forward passes."),
    "op_fallbacks": ("op_fallbacks", "Calls of layers that the device's ops did not take."),
    "cpu_seconds": ("cpu_seconds", "Processor time of the worker's process."),
}
UTILISATION = "Share of the device's cores that the worker's process kept busy since the last log."
KERNELS = "What the worker runs with, as labels; always 1."


def utilisation(before: Figures, now: Figures, cores: int) -> float:
    """Between two readings, the share of the device's cores that the worker's process kept busy;
    0 where nothing has run between them."""
    elapsed = now.at_seconds - before.at_seconds
    busy = now.cpu_seconds - before.cpu_seconds
    return min(1.0, max(0.0, busy / (elapsed * cores))) if elapsed > 0 else 0.0


class _Metrics:
    """The metrics of this process, made once however many engines it has: there may be one metric
    of a name."""

    def __init__(self) -> None:
        def gauge(name: str, words: str, labels: tuple[str, ...] = LABELS) -> Any:
            # As the engine's own: the last of several front ends that wrote it is right.
            return prometheus_client.Gauge(
                f"anvil:{name}", words, labels, multiprocess_mode="mostrecent"
            )

        self.gauges = {of: gauge(*about) for of, about in GAUGES.items()}
        self.counters = {
            of: prometheus_client.Counter(f"anvil:{name}", words, LABELS)
            for of, (name, words) in COUNTERS.items()
        }
        self.utilisation = gauge("utilisation_ratio", UTILISATION)
        self.kernels = gauge(
            "kernels_info", KERNELS, (*LABELS, "isa", "attention", "implementation", "graphs")
        )


_metrics: _Metrics | None = None


class AnvilStatLogger(StatLoggerBase):
    """Of one engine; reads the pages of its workers on this host."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self._config, self._engine = vllm_config, engine_index
        # Several front ends of one engine (--api-server-count) see the same pages, and their
        # counters are added up: the first of them counts.
        front_end = getattr(vllm_config.parallel_config, "_api_process_rank", 0)
        self._active = current_platform.device_type == "anvil" and front_end <= 0
        self._pages: list[PageReader] = []
        # By page: what is in the counters, and what was there at the last log.
        self._counted: list[Figures] = []
        self._logged: list[Figures] = []

    def log_engine_initialized(self) -> None:
        """The workers are ready, and their pages are there."""
        global _metrics
        if not self._active:
            return
        self._pages = readers(self._config, self._engine)
        if not self._pages:
            logger.debug("No worker of engine %d is on this host.", self._engine)
            return
        _metrics = _metrics or _Metrics()
        self._counted = [Figures() for _ in self._pages]
        self._logged = [page.read() for page in self._pages]
        for page in self._pages:
            kernels, graphs = page.description["kernels"], page.description["graphs"]
            _metrics.kernels.labels(
                **self._labels(page),
                isa=kernels["isa"],
                attention=",".join(kernels["attention"]),
                implementation=kernels["attention_implementation"] or "none",
                graphs=graphs["mode"],
            ).set(1)
            _metrics.utilisation.labels(**self._labels(page)).set(0)
        self.record(None, None)

    def _labels(self, page: PageReader) -> dict[str, str]:
        return {
            "model_name": self._config.model_config.served_model_name,
            "engine": str(self._engine),
            "device": page.description["device"],
        }

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """Brings the metrics up to date."""
        if _metrics is None:
            return
        for number, page in enumerate(self._pages):
            labels, now, before = self._labels(page), page.read(), self._counted[number]
            for of, gauge in _metrics.gauges.items():
                gauge.labels(**labels).set(getattr(now, of))
            for of, counter in _metrics.counters.items():
                counter.labels(**labels).inc(max(0.0, getattr(now, of) - getattr(before, of)))
            self._counted[number] = now

    def log(self) -> None:
        """One line for each device, of what has happened since the last."""
        self.record(None, None)
        for number, page in enumerate(self._pages):
            before, now = self._logged[number], self._counted[number]
            idle_until = max(now.at_seconds, time.monotonic())
            read = Figures(**{**vars(now), "at_seconds": idle_until})
            busy = utilisation(before, read, page.description["cores"])
            if _metrics is not None:
                _metrics.utilisation.labels(**self._labels(page)).set(busy)
            if now.steps > before.steps:
                logger.info(
                    "Engine %03d: %s: %d steps, %d graph replays, utilisation %.0f%%, memory %.2f "
                    "of %.2f GiB",
                    self._engine,
                    page.description["device"],
                    now.steps - before.steps,
                    now.graph_replays - before.graph_replays,
                    100 * busy,
                    now.memory_reserved / 2**30,
                    now.memory_limit / 2**30,
                )
            self._logged[number] = read
