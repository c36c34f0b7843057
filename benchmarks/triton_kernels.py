# SPDX-License-Identifier: Apache-2.0
"""The engine's Triton kernels on the device, beside what PyTorch's CPU operators take.

    python benchmarks/triton_kernels.py [--json] [--rows 32] [--vocabulary 49152]

kernels   a sampler's kernel, launched by the engine's own function, against PyTorch's CPU operators
          for the same result, on float32 logits [rows, vocabulary]; `reading` is how long it takes
          to read the logits once (torch.amax), which is a floor for most.
launch    what `kernel[grid](...)` costs the caller, the device keeping up, for a kernel of five and
          one of ten arguments, and Triton's own share of it (a launcher that does nothing).
compiling from source to machine code, per kernel used above, in an empty cache and in a warm one.

Every result is checked before it is timed. Figures are medians over rounds, in which both sides
take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

ROUNDS = 41
CALLS = 2000
PAUSE_S = 0.005
LAUNCH_TARGET_US = 8.0

Function = Callable[[], Any]


@dataclass
class Case:
    """Both functions give their result anew each time; `check` compares them."""

    name: str
    kernel: Function
    peer: Function
    check: Callable[[Any, Any], None]


def equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(found.cpu(), expected.to(found.dtype)), "results differ"


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.cpu(), expected, rtol=2e-6, atol=2e-5)


def cases(rows: int, vocabulary: int) -> list[Case]:
    from vllm.v1.worker.gpu.sample import gumbel, logprob, min_p, penalties

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, vocabulary, generator=generator) * 4
    on_device = logits.to("anvil")

    def rand(low: int, high: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator).to(dtype)

    token_ids = rand(0, vocabulary, (rows, 6), torch.int64)
    token_ids_device = token_ids.to("anvil")
    chosen = token_ids[:, 0].contiguous()
    chosen_device = chosen.to("anvil")
    requests = torch.arange(rows, dtype=torch.int32)
    requests_device = requests.to("anvil")
    ranks = torch.empty(rows, dtype=torch.int64, device="anvil")

    def launch_ranks() -> torch.Tensor:
        logprob._ranks_kernel[(rows,)](
            ranks, on_device, on_device.stride(0), chosen_device, vocabulary, BLOCK_SIZE=8192
        )
        return ranks

    in_prompt = rand(0, 8, (rows, vocabulary), torch.int64) == 0
    bits = in_prompt.view(rows, vocabulary // 32, 32).long() << torch.arange(32)
    packed = bits.sum(-1).to(torch.int32).to("anvil")
    counts = rand(0, 50, (rows, vocabulary), torch.int32)
    counts = torch.where(counts == 1, 2, 0).to(torch.int32)
    counts_device = counts.to("anvil")
    repetition, frequency, presence = (torch.full((rows,), x) for x in (1.3, 0.2, 0.1))
    parameters = [x.to("anvil") for x in (repetition, frequency, presence)]
    local = torch.zeros(rows, dtype=torch.int32, device="anvil")
    tokens = torch.zeros(rows, dtype=torch.int32, device="anvil")
    work, work_device = logits.clone(), on_device.clone()

    def launch_penalties() -> torch.Tensor:
        penalties.apply_penalties(
            work_device, requests_device, tokens, local, *parameters, packed, counts_device
        )
        return work_device

    def torch_penalties() -> torch.Tensor:
        seen = counts > 0
        scaled = torch.where(work > 0, work / repetition[:, None], work * repetition[:, None])
        work.copy_(torch.where(in_prompt | seen, scaled, work))
        work.sub_(frequency[:, None] * counts)
        work.sub_(presence[:, None] * seen)
        return work

    least = torch.full((rows,), 0.05)
    least_device = least.to("anvil")
    filtered, filtered_device = logits.clone(), on_device.clone()

    def launch_min_p() -> torch.Tensor:
        min_p.apply_min_p(filtered_device, requests_device, least_device)
        return filtered_device

    def torch_min_p() -> torch.Tensor:
        threshold = filtered.amax(-1, keepdim=True) + least[:, None].log()
        return filtered.masked_fill_(filtered < threshold, float("-inf"))

    temperature = torch.full((rows,), 0.8, device="anvil")
    seeds = torch.arange(rows, device="anvil")
    positions = torch.arange(rows, device="anvil")
    noise = torch.empty_like(logits)

    def launch_gumbel() -> torch.Tensor:
        return gumbel.gumbel_sample(
            on_device, requests_device, temperature, seeds, positions, True, False
        )

    def torch_gumbel() -> torch.Tensor:
        noise.exponential_().log_()
        return (logits / 0.8 - noise).argmax(-1)

    def check_sample(found: torch.Tensor, expected: torch.Tensor) -> None:
        """Draws differ; each is of the tokens that the distribution allows."""
        best = logits.log_softmax(-1).gather(1, found.cpu()[:, None])
        assert found.shape == expected.shape and (best > -25).all(), "an impossible sample"

    return [
        Case(
            "_topk_log_softmax",
            lambda: logprob.compute_token_logprobs(on_device, token_ids_device),
            lambda: logits.log_softmax(-1).gather(-1, token_ids),
            close,
        ),
        Case(
            "_ranks",
            launch_ranks,
            lambda: (logits >= logits.gather(1, chosen[:, None])).sum(-1),
            equal,
        ),
        Case("_penalties", launch_penalties, torch_penalties, close),
        Case("_min_p", launch_min_p, torch_min_p, equal),
        Case("_gumbel_sample", launch_gumbel, torch_gumbel, check_sample),
        Case("reading", lambda: torch.amax(on_device, -1), lambda: torch.amax(logits, -1), equal),
    ]


def milliseconds(function: Function) -> float:
    # The threads of PyTorch that the other side's call has used look for more work for a while,
    # on the cores that this side wants.
    time.sleep(PAUSE_S)
    start = time.perf_counter_ns()
    function()
    torch.anvil.synchronize()
    return (time.perf_counter_ns() - start) / 1e6


def kernel_rows(rows: int, vocabulary: int) -> list[dict[str, Any]]:
    results = []
    for case in cases(rows, vocabulary):
        case.check(case.kernel(), case.peer())
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(milliseconds(case.kernel))
            theirs.append(milliseconds(case.peer))
        kernel, peer = statistics.median(ours), statistics.median(theirs)
        results.append({"kernel": case.name, "triton_ms": kernel, "torch_ms": peer,
                        "speedup": peer / kernel})  # fmt: skip
    return results


def launch_times() -> dict[str, float]:
    """Microseconds a call of `kernel[grid](...)`, and of that Triton's own."""
    import triton
    import triton.language as tl

    @triton.jit
    def five(a, b, c, n, m, BLOCK: tl.constexpr):
        place = tl.arange(0, BLOCK)
        tl.store(a + place, place + n, mask=place < m)

    @triton.jit
    def ten(a, b, c, d, e, f, n, m, s, t, BLOCK: tl.constexpr):
        place = tl.arange(0, BLOCK)
        tl.store(a + place, place + n, mask=place < m)

    tensors = [torch.zeros(64, device="anvil") for _ in range(6)]

    def median_us(call: Function) -> float:
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter_ns()
            for _ in range(CALLS // 10):
                call()
            times.append((time.perf_counter_ns() - start) / (CALLS // 10) / 1000)
            torch.anvil.synchronize()
        return statistics.median(times)

    results = {}
    for name, kernel, arguments in (
        ("5 arguments", five, (*tensors[:3], 5, 64)),
        ("10 arguments", ten, (*tensors, 5, 64, 3, 7)),
    ):

        def call(kernel: Any = kernel, arguments: Any = arguments) -> None:
            kernel[(1,)](*arguments, BLOCK=64)

        call()
        results[name] = median_us(call)
        (compiled,) = kernel.device_caches[0][0].values()
        compiled._run = lambda *arguments: None
        results[f"{name}, Triton's share"] = median_us(call)
    return results


def compile_seconds(cache: str) -> float:
    """In a process of its own: from the first launch of each kernel to the end of its compiling."""
    program = (
        "import time, torch, vllm.platforms; from vllm.platforms import current_platform as p;"
        "p.device_type; import triton_kernels as b; cases = b.cases(4, 4096);"
        "import triton; spent = [0.0]; compile = triton.compiler.compiler.compile\n"
        "def timed(*a, **k):\n"
        "    start = time.perf_counter(); r = compile(*a, **k); r._init_handles()\n"
        "    spent[0] += time.perf_counter() - start; return r\n"
        "triton.compiler.compile = timed\n"
        "for case in cases: case.kernel()\n"
        "print('seconds', spent[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TRITON_CACHE_DIR": cache, "VLLM_LOGGING_LEVEL": "ERROR"},
        cwd=os.path.dirname(os.path.abspath(__file__)),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split("seconds ")[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=49152, help="a multiple of 32")
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm.platforms import current_platform

    assert current_platform.device_type == "anvil", "Anvil is not the platform of this process"
    kernels = kernel_rows(arguments.rows, arguments.vocabulary)
    launch = launch_times()
    with tempfile.TemporaryDirectory() as cache:
        compiling = {state: compile_seconds(cache) for state in ("empty cache", "warm cache")}
    if arguments.json:
        print(json.dumps({"kernels": kernels, "launch_us": launch, "compile_s": compiling}))
        return
    threads = torch.get_num_threads()
    print(f"float32 logits [{arguments.rows}, {arguments.vocabulary}], {threads} threads")
    print(f"{'kernel':<20}{'Triton':>10}{'PyTorch':>10}{'speed-up':>10}")
    for row in kernels:
        print(
            f"{row['kernel']:<20}{row['triton_ms']:>7.3f} ms{row['torch_ms']:>7.3f} ms"
            f"{row['speedup']:>9.2f}x"
        )
    shares = ", ".join(f"{name} {us:.1f} us" for name, us in launch.items())
    print(f"launch: {shares} (aim: {LAUNCH_TARGET_US:.0f} us)")
    times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in compiling.items())
    print(f"compiling the kernels above: {times}")


if __name__ == "__main__":
    main()
