# SPDX-License-Identifier: Apache-2.0
"""Runs many random calls through an implementation of the attention contract, against float64.

    ANVIL_ISA=avx2 python tests/attention/native_sweep.py native --cases 20000 --seed 1

The instruction set is fixed when a process first uses a kernel, so each has a process of its own.
Prints one line of JSON: the instruction set, and how many cases had which features. The first case
that fails is made as small as possible and raised.
"""

from __future__ import annotations

import argparse
import collections
import json
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from matrix_attention import matrix_attention
from sweep_cases import SweepCase, cases
from torch import Tensor

import vllm_anvil.ops  # noqa: F401  before anything registers references
from anvil_attention import verification
from anvil_attention.contract import AttentionImplementation
from anvil_attention.resolve import resolve
from anvil_attention.verification import WrongAttentionError

# What the engine's tests allow its own CPU kernel, in every dtype and with values of this size
# (tests/kernels/attention/test_cpu_attn.py of vLLM 0.32). `verification.ALLOWED` is stricter nearly
# everywhere; both must hold.
ENGINE_ATOL, ENGINE_RTOL = 1.5e-2, 1e-2
# Beside a cache of fewer bits, float32 queries and weights may be two bfloat16 numbers each. That
# moves a logit by up to 2^-17 of its size, and so the weights: errors may be so many times larger
# where logits are of size 1, and grow with them up to a point where few keys count.
TWO_NUMBERS, LARGEST_LOGITS = 4.0, 6.0


def _batch_invariant(*, causal: bool | Tensor, workspace: Tensor | None, **arguments: Any) -> None:
    per_request = causal if isinstance(causal, Tensor) else None
    torch.ops.anvil.paged_attention(
        **arguments,
        causal=True if isinstance(causal, Tensor) else causal,
        causal_per_request=per_request,
        batch_invariant=True,
    )


# The op, asked for rows that do not depend on the batch.
batch_invariant = AttentionImplementation("native, batch invariant", _batch_invariant)


def check_case(case: SweepCase, implementation: AttentionImplementation) -> None:
    """Raises WrongAttentionError where a call breaks the contract, or is further off than the
    engine allows."""
    if case.batch_invariant and implementation.name == "native":
        implementation = batch_invariant
    placed = case.placed(implementation)
    expected = matrix_attention(placed.host)
    norms = expected.norms
    if case.spec.kv_dtype.itemsize < case.spec.dtype.itemsize == 4:
        norms = norms * TWO_NUMBERS * min(case.query_factor, LARGEST_LOGITS)
    verification.check(implementation, placed, expected.values, norms)
    actual = placed.output.view.cpu()[: len(expected.values)].double()
    allowed = ENGINE_ATOL * max(1.0, case.scales[1]) + ENGINE_RTOL * expected.values.abs()
    if bool(((actual - expected.values).abs() > allowed).any()):
        raise WrongAttentionError("further off than the engine allows its own kernel")


def sweep(
    implementation: AttentionImplementation,
    count: int,
    number: int,
    *,
    devices: tuple[str, ...] = ("cpu", "anvil"),
    shrink: bool = True,
) -> collections.Counter[str]:
    """How many of `count` cases had which features; "cases" counts all.

    Args:
        number: of the sequence of random cases.
        shrink: whether a case that fails is made small before it is raised.
    """
    seen: collections.Counter[str] = collections.Counter()
    phases = [Phase.generate, *[Phase.shrink] * shrink]

    @settings(
        max_examples=count,
        phases=phases,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @seed(number)
    @given(case=cases(devices))
    def run(case: SweepCase) -> None:
        check_case(case, implementation)
        seen.update(["cases", *case.features()])

    run()
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("implementation", help="as ANVIL_ATTENTION_IMPL takes it")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    seen = sweep(resolve(chosen.implementation), chosen.cases, chosen.seed)
    print(json.dumps({"isa": torch.anvil.active_isa(), "seen": seen}))


if __name__ == "__main__":
    main()
