# SPDX-License-Identifier: Apache-2.0
"""Pages that workers write and a stat logger reads; tests/surfaces/test_server.py has both in an
engine."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import prometheus_client
import pytest

from vllm_anvil.plugin.observability import pages, stat_logger
from vllm_anvil.plugin.observability.pages import LAYOUT, Figures, PageWriter
from vllm_anvil.plugin.observability.stat_logger import AnvilStatLogger, utilisation


def config(engine: int = 0, instance: str = "abcde") -> Any:
    return SimpleNamespace(
        instance_id=instance,
        parallel_config=SimpleNamespace(data_parallel_index=engine),
        model_config=SimpleNamespace(served_model_name="a model"),
    )


def description(rank: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "pid": os.getpid(),
        "device": f"anvil:{rank}",
        "cores": 2,
        "kernels": {
            "isa": "scalar",
            "attention": ["ONE", "TWO"],
            "attention_implementation": None,
        },
        "graphs": {"mode": "NONE"},
    }


def test_pages_of_an_engine() -> None:
    writers = [PageWriter(config(), description(rank)) for rank in (1, 0)]
    others = [
        PageWriter(config(engine=1), description(2)),
        PageWriter(config(instance="other"), description(3)),
    ]
    found = pages.readers(config(), 0)
    assert [page.description for page in found] == [description(0), description(1)]
    figures = Figures(*range(1, LAYOUT.size // 8 + 1))
    writers[0].write(figures)
    assert [page.read() for page in found] == [Figures(), figures]
    for writer in (*writers, *writers, *others):
        writer.close()
    assert pages.readers(config(), 0) == []
    assert found[1].read() == figures  # what was read before stays


def test_a_page_is_this_users_and_ends_with_its_worker() -> None:
    program = f"""
from types import SimpleNamespace
from vllm_anvil.plugin.observability.pages import PageWriter
parallel = SimpleNamespace(data_parallel_index=0)
import os
page = PageWriter(SimpleNamespace(instance_id="killed", parallel_config=parallel),
                  {description(0)} | {{"pid": os.getpid()}})
print("ready", flush=True)
input()
"""
    worker = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    (page,) = pages.readers(config(instance="killed"), 0)
    links = Path(f"/proc/{worker.pid}/fd").iterdir()
    (file,) = [link for link in links if "anvil-page-killed" in os.readlink(link)]
    assert file.stat().st_mode & 0o777 == 0o600
    worker.kill()
    worker.wait()
    assert pages.readers(config(instance="killed"), 0) == []
    assert page.read() == Figures()


def test_what_is_read_while_it_is_written_never_goes_back() -> None:
    """A figure that did would be counted again."""
    program = f"""
import itertools, os
from types import SimpleNamespace
from vllm_anvil.plugin.observability.pages import LAYOUT, Figures, PageWriter
parallel = SimpleNamespace(data_parallel_index=0)
page = PageWriter(SimpleNamespace(instance_id="busy", parallel_config=parallel),
                  {description(0)} | {{"pid": os.getpid()}})
print("ready", flush=True)
for number in itertools.count():
    page.write(Figures(*[number] * (LAYOUT.size // 8)))
"""
    worker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
        (page,) = pages.readers(config(instance="busy"), 0)
        before, changes = page.read(), 0
        for _ in range(200_000):
            now = page.read()
            assert all(
                a <= b for a, b in zip(vars(before).values(), vars(now).values(), strict=True)
            )
            changes += now != before
            before = now
        assert changes
    finally:
        worker.kill()
        worker.wait()


def test_utilisation() -> None:
    before = Figures(cpu_seconds=10, at_seconds=100)
    assert utilisation(before, Figures(cpu_seconds=16, at_seconds=104), cores=2) == 0.75
    assert utilisation(before, Figures(cpu_seconds=30, at_seconds=104), cores=2) == 1.0
    assert utilisation(before, before, cores=2) == 0.0
    assert utilisation(before, Figures(cpu_seconds=10, at_seconds=104), cores=2) == 0.0


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that gives the metrics of a stat logger as {name: value}, by device."""
    registry = prometheus_client.CollectorRegistry()
    for kind in ("Gauge", "Counter"):
        made = getattr(prometheus_client, kind)

        def make(*args: Any, made: Any = made, **kwargs: Any) -> Any:
            return made(*args, registry=registry, **kwargs)

        monkeypatch.setattr(stat_logger.prometheus_client, kind, make)
    monkeypatch.setattr(stat_logger, "_metrics", None)

    def read() -> dict[tuple[str, str], float]:
        samples = [sample for family in registry.collect() for sample in family.samples]
        assert all(sample.labels["model_name"] == "a model" for sample in samples)
        return {(sample.name, sample.labels["device"]): sample.value for sample in samples}

    return read


def on(monkeypatch: pytest.MonkeyPatch, device_type: str) -> None:
    platform = SimpleNamespace(device_type=device_type)
    monkeypatch.setattr(stat_logger, "current_platform", platform)


def test_counters_and_gauges(
    metrics: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    on(monkeypatch, "anvil")
    writers = [PageWriter(config(), description(rank)) for rank in (0, 1)]
    writers[0].write(Figures(steps=3, memory_reserved=100))
    logger = AnvilStatLogger(config())
    logger.log_engine_initialized()
    assert metrics()["anvil:steps_total", "anvil:0"] == 3
    assert metrics()["anvil:kernels_info", "anvil:1"] == 1
    writers[0].write(Figures(steps=8, graph_replays=5, memory_reserved=40))
    logger.record(None, None, mm_cache_stats=None, engine_idx=0)
    assert metrics()["anvil:steps_total", "anvil:0"] == 8
    assert metrics()["anvil:memory_reserved_bytes", "anvil:0"] == 40
    assert metrics()["anvil:steps_total", "anvil:1"] == 0

    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    with caplog.at_level(logging.INFO, "vllm"):
        logger.log()
        # A set: the engine's loggers may reach the root by two ways.
        (said,) = {line for line in caplog.messages if "steps" in line}
        caplog.clear()
        logger.log()
    # The device that did nothing is not spoken of, nor is the other a second time.
    assert "anvil:0: 5 steps, 5 graph replays" in said
    assert not [line for line in caplog.messages if "steps" in line]


def test_two_engines_share_the_metrics(metrics: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "anvil")
    writers = [PageWriter(config(engine), description(engine)) for engine in (0, 1)]
    for engine, writer in enumerate(writers):
        writer.write(Figures(steps=engine + 1))
        AnvilStatLogger(config(engine), engine).log_engine_initialized()
    assert metrics()["anvil:steps_total", "anvil:1"] == 2


@pytest.mark.surface("plugin system", "stat logger plugins", "nothing on another platform")
@pytest.mark.parametrize(("device_type", "front_end"), [("cuda", 0), ("anvil", 1)])
def test_on_another_platform_it_does_nothing(
    device_type: str, front_end: int, metrics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the second front end of an engine, whose counters the first has."""
    on(monkeypatch, device_type)
    settings = config()
    settings.parallel_config._api_process_rank = front_end
    writer = PageWriter(settings, description(0))
    writer.write(Figures(steps=3))
    logger = AnvilStatLogger(settings)
    logger.log_engine_initialized()
    logger.record(None, None)
    logger.log()
    assert metrics() == {}


def test_entry_points() -> None:
    groups = {
        "vllm.stat_logger_plugins": ("anvil_stats", AnvilStatLogger),
        "vllm.endpoint_plugins": ("anvil_endpoints", None),
    }
    for group, (name, kind) in groups.items():
        (entry,) = importlib.metadata.entry_points(group=group, name=name)
        loaded = entry.load()
        assert kind is None or loaded is kind
        assert kind is not None or loaded().name == name


def test_routes_without_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the server that only renders, or where VLLM_PLUGINS leaves the platform out."""
    import asyncio

    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    from vllm_anvil.plugin.observability import endpoints

    class CpuPlatform:
        device_type = "cpu"

    monkeypatch.setattr(endpoints, "current_platform", CpuPlatform())
    plugin, app = endpoints.AnvilEndpoints(), FastAPI()
    plugin.attach_router(app)
    asyncio.run(plugin.init_state(object(), app.state, None))  # type: ignore[arg-type]
    with TestClient(app) as client:
        for path in ("report", *endpoints.PARTS, "metrics"):
            answer = client.get(f"/anvil/{path}")
            assert answer.status_code == 501 and "CpuPlatform" in answer.json()["detail"]
