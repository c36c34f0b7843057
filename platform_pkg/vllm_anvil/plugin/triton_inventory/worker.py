# SPDX-License-Identifier: Apache-2.0
"""Compiles kernels in a process of its own: `python -m vllm_anvil.plugin.triton_inventory.worker`.

Reads names of kernels from standard input and answers each with a line of JSON on the descriptor
that the first argument names; what libraries print does not get between. The first line it writes
says which kernels the platform overrides. The second argument is the stage to compile to.
"""

from __future__ import annotations

import json
import os
import sys
import warnings


def main(answers: int, last_stage: str) -> None:
    warnings.simplefilter("ignore")
    # Anvil's module is linked against libraries that torch loads.
    import torch  # noqa: F401

    from vllm_anvil.triton_backend import activate

    # vLLM looks for a backend when it is first imported, and Triton is a placeholder without one.
    if not activate("cpu"):
        sys.exit("Triton's backends are taken: another driver is active in this environment")
    from vllm_anvil.plugin.triton_inventory.compiling import compile_kernel
    from vllm_anvil.plugin.triton_inventory.discovery import kernels, package_root
    from vllm_anvil.plugin.triton_overrides import OVERRIDES

    known = {kernel.name: kernel for kernel in kernels(package_root("vllm"), "vllm")}
    with os.fdopen(answers, "w", buffering=1) as stream:
        print(json.dumps({"overridden": sorted(OVERRIDES)}), file=stream)
        for line in sys.stdin:
            outcome = compile_kernel(known[line.strip()], last_stage)
            answer = {"reason": outcome.reason, "seconds": round(outcome.seconds, 3)}
            print(json.dumps(answer), file=stream)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
