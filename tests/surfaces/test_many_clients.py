# SPDX-License-Identifier: Apache-2.0
"""64 clients stream at once: no request is lost, and every text is what its request is answered
alone. What runs together is up to the machine, and so are last bits: where they decide a token,
that is proven. The request alone then gives the other answer, too, when the logit of one token is
moved by TIE."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from pathlib import Path
from typing import Any

import pytest

from .served import Server
from .servers import async_openai_client

CLIENTS, DISTINCT = 64, 16
TIE = 1e-3
SUBJECTS = ("sea", "violin", "whale", "clock")
BEGINNINGS = ("The {} is", "Once there was a {} that", "Why do people like the {}?", "A {}:")
# What the server may hold after the load beyond what it held once the cache had been full and all
# clients had come once.
MORE_ALLOCATED, MORE_RESIDENT = 64 << 10, 16 << 20


def requests() -> list[dict[str, Any]]:
    rng = random.Random(0)
    texts = [begin.format(of) for of in SUBJECTS for begin in BEGINNINGS]
    found = []
    for number, text in enumerate(texts):
        one: dict[str, Any] = {"prompt": text, "max_tokens": rng.randint(2, 16), "temperature": 0}
        if number % 3 == 1:
            one |= {"temperature": rng.uniform(0.5, 1.2), "seed": rng.randrange(1 << 30)}
        if number % 4 == 2:
            one |= {"stop": ["."]}
        found.append(one)
    assert len(found) == DISTINCT
    return found


def filling() -> list[dict[str, Any]]:
    """Requests that make use of every block of the cache, whose memory the host gives then."""
    rng = random.Random(1)
    prompts = [[rng.randrange(100, 49000) for _ in range(480)] for _ in range(4)]
    return [{"prompt": prompt, "max_tokens": 1, "temperature": 0} for prompt in prompts]


async def answer(client: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Of one stream. Raises what the client raises."""
    text, tokens, finish = "", [], None
    bias = {"logit_bias": request["logit_bias"]} if "logit_bias" in request else {}
    plain = {name: value for name, value in request.items() if name != "logit_bias"}
    stream = await client.completions.create(
        model="model", stream=True, **plain, **bias, extra_body={"return_token_ids": True}
    )
    async for part in stream:
        for choice in part.choices:
            assert finish is None, "a part after the last"
            text += choice.text
            tokens += choice.model_dump()["token_ids"] or []
            finish = choice.finish_reason
    return {"text": text, "token_ids": tokens, "finish_reason": finish}


async def nudged(client: Any, request: dict[str, Any], found: Any, wanted: Any) -> list[Any]:
    """The request alone, with the first other token's logit raised, and the expected one's lowered;
    nothing where the one begins the other."""
    pairs = zip(found["token_ids"], wanted["token_ids"], strict=False)
    for token, other in itertools.islice((pair for pair in pairs if pair[0] != pair[1]), 1):
        return [
            await answer(client, {**request, "logit_bias": {str(one): bias}})
            for one, bias in ((token, TIE), (other, -TIE))
        ]
    return []


def resident(root: int) -> int:
    """Bytes of a process and all below it."""
    total, pids = 0, [root]
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))
    return total


def held(server: Server) -> tuple[int, int]:
    """What the device and the processes hold when nobody asks."""
    for _ in range(100):
        status, text = server.ask("/metrics")
        assert status == 200
        running = [
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))
        ]
        if len(running) == 2 and not any(running):
            break
        time.sleep(0.2)
    else:
        pytest.fail("requests are held by a server that nobody asks")
    (memory,) = server.ask("/anvil/memory")[1]
    allocated = sum(one["allocated_bytes"] for one in memory["by_tag"].values())
    return allocated, resident(server.process.pid)


async def load(server: Server, seconds: float) -> dict[str, Any]:
    asked = requests()
    async with async_openai_client(server) as client:
        alone = [await answer(client, request) for request in asked]
        served: list[tuple[int, dict[str, Any]]] = []

        async def come(number: int, until: float) -> None:
            """Asks at least once."""
            rng = random.Random(number)
            while True:
                of = rng.randrange(DISTINCT)
                served.append((of, await answer(client, asked[of])))
                if time.monotonic() >= until:
                    return

        async def all_come(until: float) -> None:
            await asyncio.gather(*(come(number, until) for number in range(CLIENTS)))

        await asyncio.gather(*(answer(client, one) for one in filling()))
        await all_come(0)
        before = await asyncio.to_thread(held, server)
        await all_come(time.monotonic() + seconds)
        after = await asyncio.to_thread(held, server)

        others = []
        for of, found in served:
            if found != alone[of]:
                ties = await nudged(client, asked[of], found, alone[of])
                others += [] if found in ties else [(asked[of], found, alone[of], ties)]
    return {"served": len(served), "others": others, "before": before, "after": after}


@pytest.mark.surface(
    "generative models",
    "completions API",
    "64 clients that stream at once: no request is lost, no text is another's, no memory grows",
)
@pytest.mark.parametrize(
    "seconds", [6, pytest.param(60, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_64_clients(server: Server, seconds: float) -> None:
    found = asyncio.run(load(server, seconds))
    allocated, processes = (b - a for a, b in zip(found["before"], found["after"], strict=True))
    print(
        f"{found['served']} streams, {len(found['others'])} other than alone, "
        f"{allocated} bytes of the device and {processes / 2**20:.1f} MiB more"
    )
    assert found["served"] >= 2 * CLIENTS
    assert not found["others"]
    assert allocated <= MORE_ALLOCATED and processes <= MORE_RESIDENT
    assert server.ask("/health")[0] == 200
