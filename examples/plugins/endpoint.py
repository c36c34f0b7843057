# SPDX-License-Identifier: Apache-2.0
"""A server with Anvil's routes, started and asked: `python endpoint.py MODEL [PORT]`.

The engine opens routes of plugins that VLLM_PLUGINS names, and that variable filters platforms,
too: it has to name both.
"""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(url: str, body: dict | None = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with OPENER.open(request, timeout=60) as answer:
        return answer.read().decode()


def main(model: str, port: str = "8123") -> None:
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model]
    command += ["--host", "127.0.0.1", "--port", port, "--max-model-len", "256"]
    variables = {**os.environ, "VLLM_PLUGINS": "anvil,anvil_stats,anvil_endpoints"}
    root = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL) as server:
        try:
            while True:
                if server.poll() is not None:
                    raise SystemExit(f"the server ended with status {server.returncode}")
                try:
                    ask(f"{root}/health")
                    break
                except OSError:
                    time.sleep(0.5)
            ask(f"{root}/v1/completions", {"model": model, "prompt": "Hello", "max_tokens": 8})
            for part in ("memory", "graphs", "kernels", "utilisation"):
                print(f"/anvil/{part}: {ask(f'{root}/anvil/{part}')}")
            print(ask(f"{root}/anvil/metrics"))
        finally:
            server.terminate()


if __name__ == "__main__":
    main(*sys.argv[1:])
