# SPDX-License-Identifier: Apache-2.0
"""Servers under load: one of each side in turn, driven by the engine's own client."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_anvil.bench.child_process import Child
from vllm_anvil.bench.comparison import Figures
from vllm_anvil.bench.run import Tell
from vllm_anvil.bench.side import ANVIL, Side

# What `vllm serve` runs: the command itself needs a distribution named vllm, and the engine's CPU
# wheels have another name.
SERVER = ("-P", "-m", "vllm.entrypoints.openai.api_server")
CLIENT = ("-P", "-m", "vllm.entrypoints.cli.main", "bench", "serve")
STOP_PATIENCE_S = 60.0
POLL_S = 0.5
# What the client reports, in milliseconds, and under which name; less is better.
METRICS = {
    "time to first token, median": "median_ttft_ms",
    "time to first token, p99": "p99_ttft_ms",
    "between tokens, median": "median_itl_ms",
    "between tokens, p99": "p99_itl_ms",
}


@dataclass(frozen=True)
class Load:
    """What the client sends at each rate: `requests` of random tokens, arriving at random.

    Attributes:
        rates: requests per second.
        input_tokens, output_tokens: of each request.
    """

    rates: tuple[float, ...]
    requests: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Answer:
    """What the client found at one rate of one server."""

    side: str
    repeat: int
    rate: float
    found: dict[str, Any]

    @property
    def failed(self) -> int:
        """Requests without a whole answer."""
        return int(self.found["num_prompts"]) - int(self.found["completed"])


@dataclass(frozen=True)
class OnlineRunner:
    """Starts servers and clients.

    Args:
        folder: for their files.
        model: the folder that is served.
        engine: arguments of vllm.LLM for both sides, given to the servers as options.
        timeout_s: until a server is ready, and of one client.
    """

    folder: Path
    model: Path
    engine: Mapping[str, Any]
    load: Load
    seed: int
    timeout_s: float

    def run(
        self,
        sides: Sequence[Side],
        repeats: int,
        tell: Tell,
        found: Callable[[Answer], None],
    ) -> None:
        """Hands each answer to `found`. Raises ChildFailed."""
        client = sides[0]
        for repeat in range(repeats):
            for side in sides:
                what = f"{side.name}'s server, run {repeat + 1} of {repeats}"
                with self._server(what, side, tell) as port:
                    for rate in self.load.rates:
                        tell(f"{what}: {rate:g} requests a second")
                        report = self._client(client, port, rate, self.seed + repeat)
                        found(Answer(side.name, repeat, rate, report))
                    tell(f"{what}: stopping")

    @contextmanager
    def _server(self, what: str, side: Side, tell: Tell) -> Iterator[int]:
        """The port of a server that is ready; it has to stop when it is told to."""
        port = _free_port()
        command = [side.python, *SERVER, "--model", str(self.model)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "bench"]
        command += _options({**self.engine, **side.arguments})
        with Child(what, command, side.environment, self.folder / "server.log") as server:
            server.doing = "it started"
            deadline = time.monotonic() + self.timeout_s
            while not _healthy(port):
                tell(f"{what}: starting")
                if not server.alive:
                    server.wait(0)
                    raise server.failure("ended")
                if time.monotonic() > deadline:
                    raise server.failure(f"was not ready after {self.timeout_s:g} s (--timeout)")
                time.sleep(POLL_S)
            server.doing = "it served"
            yield port
            server.doing = "it stopped"
            server.stop(STOP_PATIENCE_S)

    def _client(self, side: Side, port: int, rate: float, seed: int) -> dict[str, Any]:
        result = self.folder / "client.json"
        result.unlink(missing_ok=True)
        options = {
            "backend": "vllm",
            "host": "127.0.0.1",
            "port": port,
            "model": self.model,
            "served-model-name": "bench",
            "dataset-name": "random",
            "random-input-len": self.load.input_tokens,
            "random-output-len": self.load.output_tokens,
            "num-prompts": self.load.requests,
            "num-warmups": 1,
            "request-rate": rate,
            "temperature": 0,
            "seed": seed,
            "percentile-metrics": "ttft,itl",
            "metric-percentiles": "99",
            "result-dir": self.folder,
            "result-filename": result.name,
        }
        command = [side.python, *CLIENT]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        command += ["--ignore-eos", "--save-result", "--disable-tqdm"]
        environment = {**side.environment, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
        log = self.folder / "client.log"
        with Child("the client, vllm bench serve,", command, environment, log) as client:
            client.wait(self.timeout_s)
            if not result.is_file():
                raise client.failure("ended without a result")
        report: dict[str, Any] = json.loads(result.read_text())
        return report


def figures(
    answers: Sequence[Answer], rate: float, metric: str
) -> tuple[dict[str, Figures], float | None]:
    """Seconds by side, and the other's over anvil's: the median over repeats."""
    values: dict[str, dict[int, float]] = {}
    for answer in answers:
        if answer.rate == rate:
            side = values.setdefault(answer.side, {})
            side[answer.repeat] = answer.found[METRICS[metric]] / 1e3
    found = {name: Figures(tuple(one.values())) for name, one in values.items()}
    ours = values.get(ANVIL, {})
    others = next((one for name, one in values.items() if name != ANVIL), {})
    ratios = tuple(others[n] / ours[n] for n in ours if n in others and ours[n] > 0)
    return found, Figures(ratios).median if ratios else None


def _options(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments of vllm.LLM as options of `vllm serve`."""
    options = []
    for name, value in arguments.items():
        if name == "model":
            continue
        option = name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{option}" if value else f"--no-{option}")
        else:
            options += [f"--{option}", str(value)]
    return options


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _healthy(port: int) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False
