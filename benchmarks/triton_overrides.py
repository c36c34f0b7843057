# SPDX-License-Identifier: Apache-2.0
"""Native kernels that stand in for the engine's Triton kernels, against those compiled.

    python benchmarks/triton_overrides.py [--json] [--vocabulary 49152]

overrides   `apply_top_k_top_p` of the engine on float32 logits [rows, vocabulary], compiled and
            native in turn, from the call to the end of the work. `flat` logits are normal with a
            deviation of 3, `peaked` ones have a few tokens that lead, as a language model's have.
compiled    kernels without an override: how long they take, and how long the least work takes that
            any code for them has to do (`floor`), by a PyTorch operator on the same memory.

Results are checked before anything is timed. Figures are medians over rounds.

An override has to be at least twice as fast. What the figures for the others come to:

- `ComputeSlotMappingKernel` (V1 runner): a native one was measured, and is gone. For 1, 8 and 64
  requests it took the caller as long, 23 us, nearly all of it vLLM's and Triton's Python.
- `_gather_block_tables_kernel`, `_apply_write_kernel`: tens of microseconds, which are the launch
  and the engine's Python; the work itself is a copy of a few kilobytes.
- `_topk_log_softmax_kernel`: the same two passes in native vectors, maximum and sum of
  exponentials, take 12 us a row of 49152 on one core and the compiled kernel about 21, which is
  less than twice.
- `_gumbel_sample_kernel`: bound by the arithmetic of its random numbers (Philox and logarithms for
  each token), which native code would vectorise alike. It could leave out tokens that cannot win
  whatever their noise is, those masked by top-k or top-p above all: worth trying, since there the
  floor is 20 to 40 times lower, but nothing is gained for logits without a mask.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ROUNDS = 21
K, P = 50, 0.9

Row = dict[str, Any]


def milliseconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter_ns()
    function()
    torch.anvil.synchronize()
    return (time.perf_counter_ns() - start) / 1e6


def make_logits(rows: int, vocabulary: int, kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, vocabulary, generator=generator) * 3
    if kind == "peaked":
        leading = torch.randint(vocabulary, (rows, 30), generator=generator)
        logits.scatter_(1, leading, 12 + 3 * torch.randn(rows, 30, generator=generator))
    return logits


def check_masks(name: str, logits: Tensor, compiled: Tensor, native: Tensor) -> None:
    """Both keep the likeliest tokens. The compiled kernel's search stops while values of nearly the
    same probability are left, hundreds of them where logits are flat."""
    kept = native > -torch.inf
    if not torch.equal(native[kept], logits[kept]):
        raise SystemExit(f"{name}: logits that are kept have changed")
    mass = logits.double().softmax(-1)
    difference = (mass * kept).sum(-1) - (mass * (compiled > -torch.inf)).sum(-1)
    if difference.abs().max() > 2e-3:
        raise SystemExit(f"{name}: the two masks differ by {difference.abs().max():.1e}")


def measure_override(name: str, rows: int, vocabulary: int, kind: str, limits: str) -> Row:
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    from vllm_anvil.plugin import triton_overrides

    given = make_logits(rows, vocabulary, kind)
    original, logits = given.to("anvil"), given.to("anvil")
    k = torch.full((rows,), K, dtype=torch.int32, device="anvil") if "k" in limits else None
    p = torch.full((rows,), P, device="anvil") if "p" in limits else None

    def run(native: bool) -> float:
        (triton_overrides.register if native else triton_overrides.unregister)()
        logits.copy_(original)
        torch.anvil.synchronize()
        return milliseconds(lambda: apply_top_k_top_p(logits, k, p))

    run(native=False)
    compiled_mask = logits.cpu()
    run(native=True)
    check_masks(name, given, compiled_mask, logits.cpu())
    times = [(run(native=False), run(native=True)) for _ in range(ROUNDS)]
    triton_overrides.unregister()
    compiled, native = (statistics.median(column) for column in zip(*times, strict=True))
    return {"name": name, "compiled_ms": compiled, "native_ms": native, "ratio": compiled / native}


def measure_overrides(vocabulary: int) -> list[Row]:
    return [
        measure_override(f"{limits:<8}{kind:<7}{rows:>4} rows", rows, vocabulary, kind, limits)
        for limits in ("k", "p", "k and p")
        for kind in ("flat", "peaked")
        for rows in (1, 8, 32)
    ]


def compiled_cases(vocabulary: int) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """By name: the engine's function that launches the kernel, and the floor."""
    from vllm.v1.worker.gpu.block_table import BlockTables
    from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor
    from vllm.v1.worker.gpu.sample import gumbel, logprob

    from vllm_anvil.plugin.seams import pinned_views

    # As in a worker: the engine's staging buffers are views of pinned memory.
    pinned_views.apply()
    rows = 32
    device = torch.device("anvil")
    logits = make_logits(rows, vocabulary, "flat").to(device)
    requests = torch.arange(rows, dtype=torch.int32, device=device)
    numbers = torch.arange(rows, device=device)
    temperature = torch.full((rows,), 0.8, device=device)
    token_ids = torch.randint(vocabulary, (rows, 6)).to(device)

    def read_logits() -> Tensor:
        return torch.amax(logits, -1)

    tables = BlockTables(
        block_sizes=[16],
        max_num_reqs=256,
        max_num_batched_tokens=8192,
        max_num_blocks_per_group=[512],
        device=device,
    )
    for request in range(rows):
        tables.append_block_ids(request, (list(range(200)),), overwrite=True)
    tables.apply_staged_writes()
    source = torch.zeros(256, 512, dtype=torch.int32, device=device)
    target = torch.zeros(rows, 200, dtype=torch.int32, device=device)
    staged = StagedWriteTensor((256, 512), torch.int32, device)

    def write_staged() -> None:
        for request in range(rows):
            staged.stage_write(request, 7, [1])
        staged.apply_write()

    return {
        "_gumbel_sample": (
            lambda: gumbel.gumbel_sample(
                logits, requests, temperature, numbers, numbers, True, False
            ),
            read_logits,
        ),
        "_topk_log_softmax": (
            lambda: logprob.compute_token_logprobs(logits, token_ids),
            read_logits,
        ),
        "_gather_block_tables": (
            lambda: tables.gather_block_tables(requests, rows),
            lambda: target.copy_(source[:rows, :200]),
        ),
        "_apply_write": (write_staged, lambda: source[:rows, 7].fill_(1)),
    }


def measure_compiled(vocabulary: int) -> list[Row]:
    results = []
    for name, (launch, floor) in compiled_cases(vocabulary).items():
        launch()
        times = [(milliseconds(launch), milliseconds(floor)) for _ in range(ROUNDS)]
        compiled, least = (statistics.median(column) for column in zip(*times, strict=True))
        results.append(
            {"name": name, "compiled_ms": compiled, "floor_ms": least, "ratio": compiled / least}
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--vocabulary", type=int, default=49152)
    options = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm.platforms import current_platform

    if current_platform.device_type != "anvil":
        raise SystemExit("Anvil is not the platform of this process")
    with torch.inference_mode():
        tables = {
            "overrides": measure_overrides(options.vocabulary),
            "compiled": measure_compiled(options.vocabulary),
        }
    if options.json:
        print(json.dumps(tables, indent=2))
        return
    for title, rows in tables.items():
        print(f"{title} (vocabulary {options.vocabulary}, {torch.get_num_threads()} threads)")
        for row in rows:
            figures = [f"{key.removesuffix('_ms')} {row[key]:.3f} ms" for key in list(row)[1:-1]]
            print(f"  {row['name']:<26}{', '.join(figures)}: {row['ratio']:.1f}x")


if __name__ == "__main__":
    main()
