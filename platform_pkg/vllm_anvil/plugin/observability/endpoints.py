# SPDX-License-Identifier: Apache-2.0
"""The engine's endpoint plugin `anvil_endpoints`: what the device does, below `/anvil/`.

Routes are opened by who starts the server, with VLLM_PLUGINS=anvil,anvil_endpoints: the engine
loads no endpoint plugin that is not named there, and no platform that is not named there either.
They only read; the engine's `--api-key` does not guard them, as it does not guard `/metrics`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, HTTPException, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from vllm.logger import init_logger
from vllm.platforms import current_platform

from vllm_anvil.plugin.observability.pages import Figures
from vllm_anvil.plugin.observability.stat_logger import COUNTERS, GAUGES, utilisation

if TYPE_CHECKING:
    from argparse import Namespace

    from starlette.datastructures import State
    from vllm.engine.protocol import EngineClient

logger = init_logger("vllm.plugins.anvil.endpoints")

NAME = "anvil_endpoints"
UTILISATION = "Share of the device's cores that the worker kept busy since the question before."
Reports = list[dict[str, Any]]


def _memory(report: dict[str, Any]) -> dict[str, Any]:
    return report["memory"]


def _graphs(report: dict[str, Any]) -> dict[str, Any]:
    figures = report["figures"]
    return {**report["graphs"], "replays": figures["graph_replays"], "steps": figures["steps"]}


def _kernels(report: dict[str, Any]) -> dict[str, Any]:
    return {**report["kernels"], "op_fallbacks": report["op_fallbacks"]}


def _utilisation(report: dict[str, Any]) -> dict[str, Any]:
    return {"utilisation": report["utilisation"], "cpu_seconds": report["figures"]["cpu_seconds"]}


PARTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "memory": _memory,
    "graphs": _graphs,
    "kernels": _kernels,
    "utilisation": _utilisation,
}


class AnvilEndpoints:
    """GET /anvil/report, and its parts: /anvil/memory, /anvil/graphs, /anvil/kernels and
    /anvil/utilisation, a list each with an entry for every worker; /anvil/metrics in the text
    format of Prometheus. Sizes are bytes; utilisation is that since the question before."""

    name = NAME
    required_tasks = None

    def __init__(self) -> None:
        self._engine: EngineClient | None = None
        # By rank, what was read at the question before.
        self._before: dict[int, Figures] = {}

    async def init_state(
        self, engine_client: EngineClient | None, state: State, args: Namespace
    ) -> None:
        """Called by the engine once the server is about to start."""
        if current_platform.device_type == "anvil":
            self._engine = engine_client
        else:
            logger.warning(
                "The routes below /anvil/ answer nothing, since the platform is %s. VLLM_PLUGINS "
                "has to name anvil beside %s: it filters platforms, too.",
                type(current_platform).__name__,
                NAME,
            )

    def attach_router(self, app: FastAPI) -> None:
        """Called by the engine when all of its own routes are there."""
        app.add_api_route("/anvil/report", self._reports, methods=["GET"], tags=["anvil"])
        for name, part in PARTS.items():
            route = self._route(part)
            app.add_api_route(f"/anvil/{name}", route, methods=["GET"], tags=["anvil"], name=name)
        app.add_api_route("/anvil/metrics", self._prometheus, methods=["GET"], tags=["anvil"])

    async def _reports(self) -> Reports:
        """What every worker says, by rank."""
        if self._engine is None:
            raise HTTPException(
                HTTPStatus.NOT_IMPLEMENTED,
                f"no engine on the anvil device is behind this server: the platform is "
                f"{type(current_platform).__name__}",
            )
        reports: Reports = await self._engine.collective_rpc("anvil_report")  # type: ignore[attr-defined]
        for report in reports:
            now = Figures(**report["figures"])
            before = self._before.get(report["rank"], Figures(**report["at_start"]))
            report["utilisation"] = utilisation(before, now, report["cores"])
            self._before[report["rank"]] = now
        return reports

    def _route(
        self, part: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> Callable[[Request], Awaitable[Reports]]:
        async def answer(request: Request) -> Reports:
            return [
                {"rank": report["rank"], "device": report["device"], **part(report)}
                for report in await self._reports()
            ]

        return answer

    async def _prometheus(self) -> Response:
        """What `/metrics` has from the stat logger, as the workers say it now."""
        registry = CollectorRegistry()
        registry.register(_Metrics(await self._reports()))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class _Metrics:
    """What a registry collects, of one reading."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports

    def collect(self) -> Iterator[Metric]:
        kinds = ((GAUGES, GaugeMetricFamily), (COUNTERS, CounterMetricFamily))
        for names, kind in kinds:
            for of, (name, words) in names.items():
                yield self._filled(kind(f"anvil:{name}", words, labels=["device"]), "figures", of)
        family = GaugeMetricFamily("anvil:utilisation_ratio", UTILISATION, labels=["device"])
        yield self._filled(family, "utilisation")

    def _filled(self, family: Any, *path: str) -> Metric:
        for report in self._reports:
            value: Any = report
            for key in path:
                value = value[key]
            family.add_metric([report["device"]], value)
        return family
