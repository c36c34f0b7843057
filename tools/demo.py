# SPDX-License-Identifier: Apache-2.0
"""The main job: a real model answers on the anvil device, first in Python and then as a server.

vLLM selects the platform by itself; nothing here names it but the check that it is Anvil's. Exit
status 1 where vLLM chose another platform, an answer is wrong, or an engine does not stop in time.
"""

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parent
MODEL = TOOLS.parent / "models" / "SmolLM2-135M-Instruct"
EXTENSION = "demo_facts.DemoFacts"

# Prompts, and what must appear in the answer where there is only one right one. Those are asked so
# that the model is sure of every token: bfloat16 has no say in which answer comes.
PROMPTS = {
    "What is the capital of France? Answer in one sentence.": "Paris",
    "What is the capital of Japan?": "Tokyo",
    "Name three primary colours.": "",
    "Write one sentence about the sea.": "",
}
MAX_TOKENS = 48
START_LIMIT_S = 600
STOP_LIMIT_S = 10


def say(text: str = "") -> None:
    print(text, flush=True)


def show_facts(facts: dict[str, str]) -> None:
    """Print what runs; SystemExit unless it is Anvil."""
    for name, value in facts.items():
        say(f"  {name}={value}" if name == "device" else f"  {name}: {value}")
    if not facts["platform"].startswith("vllm_anvil."):
        raise SystemExit(
            f"vLLM chose {facts['platform']} instead of Anvil's platform; "
            "`.venv/bin/vllm-anvil doctor` tells why"
        )


def check_answer(prompt: str, answer: str) -> None:
    say(f"  Q: {prompt}\n  A: {answer.strip()}")
    if not answer.strip() or PROMPTS[prompt] not in answer:
        raise SystemExit(f"the answer to {prompt!r} lacks {PROMPTS[prompt]!r}")


def run_in_python() -> None:
    """`vllm.LLM`: a batch of chat prompts."""
    say("== vllm.LLM")
    begin = time.monotonic()
    say("  starting the engine ...")
    from vllm import LLM, SamplingParams

    llm = LLM(model=str(MODEL), worker_extension_cls=EXTENSION)
    say(f"  the engine is ready after {time.monotonic() - begin:.1f} s")
    show_facts(llm.collective_rpc("demo_facts")[0])

    chats: list[Any] = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    sampling = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    begin = time.monotonic()
    outputs = llm.chat(chats, sampling, use_tqdm=False)
    elapsed = time.monotonic() - begin
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        check_answer(prompt, output.outputs[0].text)
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    say(f"  {tokens} tokens in {elapsed:.2f} s: {tokens / elapsed:.1f} tokens/s")

    begin = time.monotonic()
    del llm
    gc.collect()
    check_stopped("the engine", time.monotonic() - begin)


def check_stopped(what: str, elapsed: float) -> None:
    say(f"  {what} stopped in {elapsed:.1f} s")
    if elapsed > STOP_LIMIT_S:
        raise SystemExit(f"{what} took longer than {STOP_LIMIT_S} s to stop")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetch(url: str, body: dict[str, Any] | None = None) -> bytes:
    """The body of the response to GET, or to POST with `body` as JSON. Proxies are not for us."""
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as response:
        content: bytes = response.read()
    return content


@contextlib.contextmanager
def server(port: int) -> Iterator[None]:
    """`vllm serve` on a loopback port, ready on entry, stopped by SIGTERM on leaving.

    When anything fails, the end of the server's log is printed.
    """
    vllm = Path(sys.executable).with_name("vllm")
    command = [str(vllm), "serve", str(MODEL), "--served-model-name", MODEL.name]
    command += ["--host", "127.0.0.1", "--port", str(port), "--worker-extension-cls", EXTENSION]
    # The development endpoints carry the question to the worker; they are for loopback only.
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_LOGGING_LEVEL": "INFO"}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until_ready(process, port)
            yield
            begin = time.monotonic()
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(2 * STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                raise SystemExit("the server does not stop on SIGTERM") from None
            check_stopped("the server", time.monotonic() - begin)
        except BaseException:
            log.seek(0)
            say("  the end of the server's log:")
            say("".join(log.readlines()[-60:]))
            raise
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    begin = told = time.monotonic()
    while (now := time.monotonic()) - begin < START_LIMIT_S:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with status {process.returncode} while starting")
        try:
            fetch(f"http://127.0.0.1:{port}/health")
            say(f"  the server is ready after {now - begin:.1f} s")
            return
        except OSError:
            time.sleep(0.5)
        if now - told >= 5:
            told = now
            say(f"  waiting for the server: {now - begin:.0f} s")
    raise SystemExit(f"the server is not ready after {START_LIMIT_S} s")


def run_as_server() -> None:
    """`vllm serve`: one OpenAI chat request over loopback."""
    say("== vllm serve")
    import httpx
    from openai import OpenAI

    port = free_port()
    with server(port):
        root = f"http://127.0.0.1:{port}"
        reply = json.loads(fetch(f"{root}/collective_rpc", {"method": "demo_facts"}))
        show_facts(reply["results"][0])
        client = OpenAI(
            base_url=f"{root}/v1", api_key="none", http_client=httpx.Client(trust_env=False)
        )
        prompt = next(iter(PROMPTS))
        begin = time.monotonic()
        completion = client.chat.completions.create(
            model=MODEL.name,
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=MAX_TOKENS,
        )
        elapsed = time.monotonic() - begin
        check_answer(prompt, completion.choices[0].message.content or "")
        tokens = completion.usage.completion_tokens if completion.usage else 0
        say(f"  {tokens} tokens in {elapsed:.2f} s: {tokens / elapsed:.1f} tokens/s")


def main() -> None:
    # The model is a local folder, and the engine's own log would drown what is shown here.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    # Workers and the server find the worker extension beside this file.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(TOOLS), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    run_in_python()
    run_as_server()
    say("== all of it ran on Anvil")


if __name__ == "__main__":
    main()
